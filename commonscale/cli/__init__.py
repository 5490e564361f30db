"""The `commonscale` command."""

from commonscale.cli.app import main

__all__ = ["main"]
