"""Daemons that fail on purpose."""
