"""The coordinator daemon: relays and adds what it cannot read."""
