"""Federated BatchNorm in one process with all rows: a network of torch's own layers, on the sites' batches pooled.

python tests/oracle_pooled.py MODULE.py CLASS ROUNDS SETTINGS.json ROWS.npz HISTORY.npz OUTPUT.npz

One step per round, sites of equal size. Nothing of the worker's training is used but which rows a batch takes, and the
first weights, from HISTORY. A batch is normalized by the running statistics, as constants; these then move by mean and
unbiased variance of the pooled batch. OUTPUT has weights, mean and variance after the last round.
"""

import json
import sys

import numpy as np
import torch
from commonscale_worker import cli, registry
from commonscale_worker.batches import batches
from commonscale_worker.settings import Settings
from commonscale_worker.v1 import worker_pb2 as pb


def main(module: str, name: str, rounds: int, settings: str, rows: str, history: str, output: str) -> None:
    cli.load(module)
    with open(settings) as file:
        options = json.load(file)
    classes = options.pop("classes")
    chosen = Settings.of(pb.Settings(**options))
    with np.load(rows) as file:
        x, y = ([torch.from_numpy(file[f"{part}{at}"]) for at in range(len(file.files) // 2)] for part in "xy")
    network = registry.offered(name).make().build(x[0].shape[1], classes).double()
    with np.load(history) as file, torch.no_grad():
        first = torch.from_numpy(file["history"][0])
        torch.nn.utils.vector_to_parameters(first, network.parameters())
    norms = [layer for layer in network.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    seen = {}
    for layer in norms:
        layer.register_forward_hook(lambda one, values, _: seen.update({one: values[0].detach()}))
    # Running statistics as constants.
    network.eval()
    for number in range(1, rounds + 1):
        (taken,) = batches(chosen, number, len(x[0]))
        pooled_x, pooled_y = (torch.cat([site[taken] for site in table]) for table in (x, y))
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(pooled_x), pooled_y.long()).backward()
        with torch.no_grad():
            for part in network.parameters():
                part.sub_(chosen.learning_rate * part.grad)
            for layer in norms:
                values = seen[layer].transpose(0, 1).flatten(1)
                layer.running_mean.lerp_(values.mean(1), layer.momentum)
                layer.running_var.lerp_(values.var(1, unbiased=True), layer.momentum)
    weights = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    mean, variance = (np.concatenate([getattr(one, f"running_{what}") for one in norms]) for what in ("mean", "var"))
    np.savez(output, weights=weights, mean=mean, variance=variance)


if __name__ == "__main__":
    module, name, rounds, *files = sys.argv[1:]
    main(module, name, int(rounds), *files)
