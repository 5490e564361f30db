"""commonscale puts the data of many sites on a common scale without moving it.

The public names come from their modules when they are first used: importing the package loads nothing heavy, reads no
file and changes no environment.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from commonscale.errors import *  # noqa: F403 - every error is a public name
from commonscale.errors import leaf_errors
from commonscale.version import __version__ as __version__

if TYPE_CHECKING:
    from commonscale.client import Client as Client
    from commonscale.client import Job as Job
    from commonscale.estimators.storage import load as load
    from commonscale.pipeline import Pipeline as Pipeline
else:
    # Where the names that take time to load are.
    _MODULES = {
        "Client": "commonscale.client",
        "Job": "commonscale.client",
        "Pipeline": "commonscale.pipeline",
        "load": "commonscale.estimators.storage",
    }
    __all__ = ["Client", "Job", "Pipeline", "__version__", "load"]
    __all__ += [kind.__name__ for kind in leaf_errors()]

    # Unseen by type checkers, which would take every misspelt name for one of these.
    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
