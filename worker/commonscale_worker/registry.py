"""The models that this worker offers, each with the digest that a site's policy pins."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from commonscale_worker.errors import ModelError
from commonscale_worker.models import Model
from commonscale_worker.version import __version__

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")

Class = TypeVar("Class", bound=type)


class Offer(NamedTuple):
    """A registered model."""

    name: str
    digest: str
    make: Callable[[], Model]


_offers: dict[str, Offer] = {}


def model(name: str) -> Callable[[Class], Class]:
    """Offer the class under a name: `@cw.model("readmission-mlp")`."""

    def registered(cls: Class) -> Class:
        register(name, cls, cls)
        return cls

    return registered


def register(name: str, make: Callable[[], Any], source: type | Callable[..., Any]) -> None:
    """Offer what `make` gives; the digest is that of the file that defines `source`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ModelError(f"{name!r} is no name of a model: lower-case letters, digits and hyphens, up to 63 of them")
    if name in _offers:
        raise ModelError(f"two models are named {name!r}")
    _offers[name] = Offer(name, digest(name, source), make)


def offers() -> list[Offer]:
    """All models, in the order of their definition."""
    return list(_offers.values())


def offered(name: str) -> Offer:
    """The model of a name."""
    if name not in _offers:
        raise ModelError(f"this worker offers no model {name!r}")
    return _offers[name]


def clear() -> None:
    """Forget all models."""
    _offers.clear()


def digest(name: str, source: type | Callable[..., Any]) -> str:
    """SHA-256 of the worker's release, the model's name and the bytes of the file that defines it."""
    try:
        path = inspect.getsourcefile(source)
        content = Path(path).read_bytes() if path else None
    except (OSError, TypeError):
        content = None
    if content is None:
        raise ModelError(f"model {name!r} is defined in no file, so it has no digest that a site could pin")
    prefix = "\0".join(("commonscale-worker", __version__, name, ""))
    return hashlib.sha256(prefix.encode() + content).hexdigest()
