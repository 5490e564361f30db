"""Federated averaging in one process, by the worker's own models: what a job over daemons is compared with.

python tests/oracle_fedavg.py MODULE.py MODEL ROUNDS SETTINGS.json ROWS.npz OUTPUT.npz

Runs in the worker's environment, and needs nothing of ours but the worker's package. ROWS has `x0`, `y0`, `x1` … of the
sites. Statistics of BatchNorm layers are torch's formula on the sites' batches pooled. OUTPUT has the weights after
each round, and mean and variance after the last. With start.npy beside ROWS it is only the last round, from there.
"""

import json
import sys
from pathlib import Path

import numpy as np
from commonscale_worker import cli, registry
from commonscale_worker.data import Data
from commonscale_worker.jobs import Job
from commonscale_worker.v1 import worker_pb2 as pb


def main(module: str, name: str, rounds: int, settings: str, rows: str, output: str) -> None:
    cli.load(module)
    with open(settings) as file:
        options = json.load(file)
    classes = options.pop("classes")
    with np.load(rows) as file:
        tables = [(file[f"x{at}"], file[f"y{at}"]) for at in range(len(file.files) // 2)]
    jobs = []
    for x, y in tables:
        data = Data(x, y, np.zeros(len(x), bool), classes, options["precision"])
        features = [f"f{at}" for at in range(x.shape[1])]
        prepare = pb.Prepare(id="o", model=name, features=features, settings=pb.Settings(**options))
        prepare.classes.extend(map(str, range(classes)))
        jobs.append(Job(registry.offered(name), prepare, data))
    weights = jobs[0].first["weights"].astype(np.float64)
    widths = [layer.channels for layer in jobs[0].layers]
    mean, variance = np.zeros(sum(widths)), np.ones(sum(widths))
    share = [len(x) / sum(len(other) for other, _ in tables) for x, _ in tables]
    first = 1
    if (start := Path(rows).with_name("start.npy")).exists():
        weights, first = np.load(start).astype(np.float64), rounds
    history = [weights]
    for number in range(first, rounds + 1):
        arrays = {"weights": weights.astype(options["precision"]), "mean": mean, "variance": variance}
        if not widths:
            del arrays["mean"], arrays["variance"]
        task = pb.Task(id=str(number), kind=pb.Task.KIND_TRAIN, round=number, rounds=rounds, job="o")
        found = [job.train(task, arrays, lambda _: None) for job in jobs]
        after = sum(part * one["weights"].astype(np.float64) for part, one in zip(share, found))  # noqa: B905 - any Python
        if widths:
            n = np.repeat(sum(one["count"] for one in found), widths)
            shift = sum(one["sum"] for one in found) / n
            batch_variance = sum(one["square"] for one in found) / n - shift**2
            mean, variance = mean + 0.1 * shift, 0.9 * variance + 0.1 * batch_variance * n / (n - 1)
        weights = after.astype(options["precision"]).astype(np.float64)
        history.append(weights)
    np.savez(output, history=np.array(history), mean=mean, variance=variance)


if __name__ == "__main__":
    module, name, rounds, settings, rows, output = sys.argv[1:]
    main(module, name, int(rounds), settings, rows, output)
