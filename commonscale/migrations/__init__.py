"""Shared migration environment; the versions stand beside each daemon."""
