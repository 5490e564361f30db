"""Modules that workers of tests run."""
