"""A daemon whose `quantiles` step measures itself.

python -m bench.ckks_daemon participant|coordinator --config …
"""

from __future__ import annotations

from bench import ckks_roles
from commonscale import steps
from commonscale.cli import main

if __name__ == "__main__":
    steps.MODULES["quantiles"] = ckks_roles
    main()
