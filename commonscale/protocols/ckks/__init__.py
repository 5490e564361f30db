"""Threshold CKKS between sites: collective keys, decryption and refresh, and circuits that all roles run."""
