"""commonscale puts the data of many sites on a common scale without moving it."""

from commonscale.version import __version__

__all__ = ["__version__"]
