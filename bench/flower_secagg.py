"""Flower's SecAgg+ on made-up vectors, run by a Python that has `flwr`: nothing of ours is imported here.

Its own workflow (server) and its own mod (clients) in one process: messages are handed over as objects, so neither
network nor TLS nor storage is in the figures, and the clients take turns on one core.

PYTHON flower_secagg.py PARTIES PARAMETERS ROUNDS prints one JSON object.
"""

from __future__ import annotations

import copy
import json
import logging
import statistics
import sys
import time
from collections.abc import Iterable
from typing import Any

import flwr
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity

ROWS = 50


class Node:
    """What the workflow asks of a client's proxy."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id


class Average(FedAvg):  # type: ignore[misc]
    """All clients take part in every round."""

    def __init__(self, nodes: list[Any]) -> None:
        super().__init__()
        self._nodes = nodes

    def configure_fit(
        self, server_round: int, parameters: Any, client_manager: Any
    ) -> list[tuple[ClientProxy, FitIns]]:
        """The same weights for everyone."""
        return [(node, FitIns(parameters, {})) for node in self._nodes]


class Clients:
    """What the workflow sends to: every client answers at once, through Flower's mod."""

    def __init__(self, vectors: dict[int, np.ndarray[Any, Any]]) -> None:
        self._vectors = vectors
        self._contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in vectors}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All answers."""
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id

        def trained(asked: Message, _context: Context) -> Message:
            found = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([self._vectors[node]]), ROWS, {})
            return Message(compat.fitres_to_recorddict(found, keep_input=False), reply_to=asked)

        # A copy, as over a network: the mod takes its settings out of the message.
        return secaggplus_mod(copy.deepcopy(message), self._contexts[node], trained)


def main(parties: int, parameters: int, rounds: int) -> dict[str, Any]:
    """Figures of so many rounds."""
    # A process that Flower starts has these from it.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    generator = np.random.default_rng(2026)
    vectors = {node: generator.normal(0, 0.05, parameters).astype(np.float32) for node in range(1, parties + 1)}
    nodes: list[Any] = [Node(node) for node in vectors]
    state = RecordDict()
    context = LegacyContext(Context(1, 0, {}, state, {}), strategy=Average(nodes))
    first = ndarrays_to_parameters([np.zeros(parameters, np.float32)])
    # Every client is every other's neighbour, as with our masks.
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)
    lasted, cpu = [], time.process_time()
    for number in range(1, rounds + 1):
        state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: number})
        state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(first, keep_input=True)
        start = time.perf_counter()
        workflow(Clients(vectors), context)
        lasted.append(time.perf_counter() - start)
    total = compat.arrayrecord_to_parameters(state.array_records[MAIN_PARAMS_RECORD], keep_input=True)
    error = np.abs(parameters_to_ndarrays(total)[0] - np.mean(list(vectors.values()), axis=0)).max()
    return {
        "flwr": flwr.__version__,
        "round_s": round(statistics.median(lasted), 4),
        "cpu_s": round(time.process_time() - cpu, 3),
        "rounds": rounds,
        "max_error": float(error),
    }


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:4]))) + "\n")
