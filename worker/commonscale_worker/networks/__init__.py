"""Local training and federated averaging as a plain library: numpy, no network, nothing else of ours."""
