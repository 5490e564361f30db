"""The release of the worker."""

__version__ = "0.1.0"
