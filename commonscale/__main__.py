"""`python -m commonscale`."""

from commonscale.cli import main

main()
