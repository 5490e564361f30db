"""Trains models at a site, attached to its commonscale participant."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commonscale_worker.data import Data
    from commonscale_worker.models import Metrics, Model, Round
    from commonscale_worker.registry import model
    from commonscale_worker.running import run
    from commonscale_worker.settings import Settings
    from commonscale_worker.sklearn_model import SklearnModel
    from commonscale_worker.torch_model import TorchModel

__all__ = ["Data", "Metrics", "Model", "Round", "Settings", "SklearnModel", "TorchModel", "model", "run"]

# Imported when they are asked for: the participant needs the codec alone, and no worker needs all libraries.
_WHERE = {
    "Data": "data",
    "Metrics": "models",
    "Model": "models",
    "Round": "models",
    "Settings": "settings",
    "SklearnModel": "sklearn_model",
    "TorchModel": "torch_model",
    "model": "registry",
    "run": "running",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
