"""`python -m commonscale_worker` is `commonscale-worker`."""

from commonscale_worker.cli import main

main()
