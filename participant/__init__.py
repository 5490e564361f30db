"""The participant daemon: one per site, beside its data, dialling out only."""
