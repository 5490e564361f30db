"""The transforms, one module per family. Every module here is loaded, and its classes register themselves."""

import importlib
import pkgutil

from commonscale.transforms.base import TRANSFORMS, Transform

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TRANSFORMS", "Transform"]
