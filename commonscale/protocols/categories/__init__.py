"""Common identifiers of categorical values: one module a protocol."""
