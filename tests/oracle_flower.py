"""Flower's own federated averaging over the clients of a test, in one process; run by the worker's Python.

python tests/oracle_flower.py torch|sklearn ROUNDS SITES LEARNING_RATE FILE
"""

import random
import sys
from typing import Any

import numpy as np


def seed(number: int) -> None:
    """As the adapter does before each round."""
    random.seed(number)
    np.random.seed(number)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


def context(site: int, sites: int) -> Any:
    from flwr.common import Context, RecordDict

    node = {"partition-id": site, "num-partitions": sites}
    run = {"batch-size": 8, "local-epochs": 1}
    return Context(run_id=0, node_id=site, node_config=node, state=RecordDict(), run_config=run)


def with_messages(rounds: int, sites: int, learning_rate: float) -> list[np.ndarray]:
    from commonscale_worker.flower_messages import message
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg
    from models.flower_torch import Net, app

    seed(0)
    arrays, strategy = ArrayRecord(Net().state_dict()), FedAvg()
    for number in range(1, rounds + 1):
        replies = []
        for site in range(sites):
            seed(number)
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": learning_rate})})
            replies.append(app(message(content, "train", site), context(site, sites)))
        arrays, _ = strategy.aggregate_train(number, replies)
    return arrays.to_numpy_ndarrays()


def with_clients(rounds: int, sites: int) -> list[np.ndarray]:
    from flwr.server.strategy.aggregate import aggregate
    from models.flower_sklearn import client_fn, first

    parameters = first()
    clients = [client_fn(context(site, sites)).numpy_client for site in range(sites)]
    for number in range(1, rounds + 1):
        seed(number)
        results = [client.fit([part.copy() for part in parameters], {})[:2] for client in clients]
        parameters = aggregate(results)
    return parameters


if __name__ == "__main__":
    kind, rounds, sites, learning_rate, file = sys.argv[1:]
    if kind == "torch":
        found = with_messages(int(rounds), int(sites), float(learning_rate))
    else:
        found = with_clients(int(rounds), int(sites))
    np.save(file, np.concatenate([part.ravel() for part in found]))
