"""Federated training: rounds of local training at the sites' workers, of which only sums are opened."""
