"""The worker: models, batches, BatchNorm, and its side of the protocol."""
