"""Networks of torch: a model is the function that builds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from commonscale_worker.batches import batches, batches_per_round
from commonscale_worker.batchnorm import Norms
from commonscale_worker.data import Data
from commonscale_worker.errors import ModelError, Unsuitable
from commonscale_worker.models import Layer, Metrics, Round, class_metrics, value_metrics
from commonscale_worker.settings import Settings
from commonscale_worker.vectors import Array, Tensors

EVALUATED_ROWS = 4096


class Memory(NamedTuple):
    """What stays at the site between rounds."""

    # With one step per round: the momentum of every parameter that has one.
    momentum: dict[int, Any]
    # With batchnorm = "local": running means and variances, if there are some.
    statistics: tuple[Array, Array] | None


class TorchModel:
    """A network that `build` makes; weights, batches, optimiser, FedProx and BatchNorm over sites come with it."""

    # Where it trains: "cpu", "cuda".
    device = "cpu"

    def build(self, features: int, classes: int) -> Any:
        """The network: from `features` numbers per row to one output per class, or to one number (classes = 1)."""
        raise NotImplementedError("a TorchModel has a method build(self, features, classes) that gives a network")

    def loss(self, outputs: Any, target: Any) -> Any:
        """The mean loss of a batch: cross entropy of classes, squared error of numbers."""
        if not self._classes:
            return functional.mse_loss(outputs.reshape(-1), target)
        if outputs.shape[1] == 1:
            return functional.binary_cross_entropy_with_logits(outputs[:, 0], target.to(outputs))
        return functional.cross_entropy(outputs, target)

    def prepare(self, data: Data, settings: Settings, features: Sequence[str], classes: Sequence[str]) -> None:
        """Build the network from the job's seed, and look whether it can be averaged."""
        self._settings, self._classes = settings, len(classes)
        self._dtype = getattr(torch, settings.precision)
        self._x, self._y, self._x_evaluation, self._y_evaluation = (
            torch.from_numpy(np.ascontiguousarray(part))
            for part in (data.x, data.y, data.x_evaluation, data.y_evaluation)
        )
        # Of the weights; the seed of torch takes 64 bits.
        torch.manual_seed(settings.seed)
        network = self.build(len(features), len(classes) or 1)
        if not isinstance(network, torch.nn.Module):
            raise ModelError(f"build gave a {type(network).__name__}, not a torch.nn.Module")
        network = network.to(self.device, self._dtype)
        self._complete(network, len(features))
        self._norms = Norms(network, settings.batchnorm)
        self._network = self._norms.network
        _check_buffers(self._network)
        self._momentum: dict[int, Any] = {}
        # Those of shared layers come with every task.
        self._has_statistics = not len(self._norms) or self._norms.kind != "local"
        self._check_outputs()

    def get_weights(self) -> Tensors:
        """All parameters, also those that do not learn: so every site sees whether they are the same everywhere."""
        return {name: part.detach().cpu().numpy() for name, part in self._network.named_parameters()}

    def set_weights(self, weights: Tensors) -> None:
        """Go on from these."""
        with torch.no_grad():
            for name, part in self._network.named_parameters():
                part.copy_(torch.from_numpy(weights[name]))

    def fit(self, round: Round) -> None:  # noqa: A002
        """Train one round; what is drawn by chance in it comes from the seed and its number."""
        torch.manual_seed((self._settings.seed + round.number) % 2**63)
        self._find_local_statistics(first=round.number == 1)
        self._network.train()
        self._norms.begin(round.number, round.rounds)
        learning = [part for part in self._network.parameters() if part.requires_grad]
        first = [part.detach().clone() for part in learning] if self._settings.proximal else []
        optimizer = self._optimizer(learning, self._settings.learning_rate_in(round.number))
        count = batches_per_round(self._settings, len(self._x))
        for number, taken in enumerate(batches(self._settings, round.number, len(self._x)), 1):
            chosen = torch.from_numpy(taken)
            optimizer.zero_grad()
            loss = self.loss(self._network(self._x[chosen].to(self.device)), self._y[chosen].to(self.device))
            if first:
                far = sum(((part - start) ** 2).sum() for part, start in zip(learning, first))
                loss = loss + self._settings.proximal / 2 * far
            loss.backward()
            optimizer.step()
            round.progress(number / count)
        self._keep_momentum(optimizer, learning)

    def evaluate(self) -> Metrics:
        """The loss that was trained, and what the network predicts."""
        self._find_local_statistics(first=False)
        self._network.eval()
        outputs, loss = [], 0.0
        with torch.no_grad():
            for x, y in zip(self._x_evaluation.split(EVALUATED_ROWS), self._y_evaluation.split(EVALUATED_ROWS)):
                if len(x):
                    output = self._network(x.to(self.device))
                    loss += float(self.loss(output, y.to(self.device))) * len(x)
                    outputs.append(output.double().cpu())
        y = self._y_evaluation.numpy()
        if not self._classes:
            return value_metrics(y, y, loss)
        width = self._classes
        predicted = torch.cat(outputs) if outputs else torch.zeros(0, width)
        return class_metrics(_probabilities(predicted).numpy(), y, loss)

    def layers(self) -> list[Layer]:
        """BatchNorm layers whose statistics are pooled."""
        return self._norms.layers

    def set_statistics(self, mean: Array, variance: Array) -> None:
        """Their shared running statistics."""
        self._norms.set_statistics(mean, variance)

    def get_statistics(self) -> Tensors:
        """What a round's Result says of them."""
        return self._norms.results()

    def needs_memory(self) -> bool:
        """Momentum of single steps; statistics that stay here can be found again from the rows."""
        return self._settings.steps == 1 and self._settings.momentum > 0 and self._settings.optimizer == "sgd"

    def get_memory(self) -> object:
        """Momentum of single steps, and statistics that stay here."""
        local = self._norms.kind == "local" and len(self._norms) > 0 and self._has_statistics
        momentum = {number: part.clone() for number, part in self._momentum.items()}
        return Memory(momentum, self._norms.statistics() if local else None)

    def set_memory(self, memory: object) -> None:
        """Go back to what was there before a round."""
        assert isinstance(memory, Memory)
        self._momentum = {number: part.clone() for number, part in memory.momentum.items()}
        if self._norms.kind == "local" and len(self._norms):
            self._has_statistics = memory.statistics is not None
            if memory.statistics is None:
                self._norms.reset()
            else:
                self._norms.set_statistics(*memory.statistics)

    def _optimizer(self, learning: list[Any], learning_rate: float) -> Any:
        settings = self._settings
        if settings.optimizer == "adam":
            return torch.optim.Adam(learning, lr=learning_rate, weight_decay=settings.weight_decay)
        optimizer = torch.optim.SGD(
            learning, lr=learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        for number, part in self._momentum.items():
            optimizer.state[learning[number]]["momentum_buffer"] = part.clone()
        return optimizer

    def _keep_momentum(self, optimizer: Any, learning: list[Any]) -> None:
        """Gradient descent with one step per round has its momentum at the site; other rounds begin without."""
        if self.needs_memory():
            buffers = [optimizer.state[part].get("momentum_buffer") for part in learning]
            self._momentum = {number: part.clone() for number, part in enumerate(buffers) if part is not None}

    def _find_local_statistics(self, first: bool) -> None:
        """A worker that comes to a job late, or again, has lost its local statistics: its rows give others."""
        if not self._has_statistics and not first:
            self._norms.estimate(part.to(self.device) for part in self._x.split(EVALUATED_ROWS) if len(part) > 1)
        self._has_statistics = True

    def _complete(self, network: Any, features: int) -> None:
        """Layers that wait for their first batch to know their size get one."""
        if any(torch.nn.parameter.is_lazy(part) for part in network.parameters()):
            network.eval()
            with torch.no_grad():
                network(torch.zeros(2, features, dtype=self._dtype, device=self.device))

    def _check_outputs(self) -> None:
        self._network.eval()
        with torch.no_grad():
            output = self._network(self._x[:2].to(self.device))
        rows, width = len(self._x[:2]), self._classes or 1
        if self._classes == 2 and tuple(output.shape) == (rows, 1):
            return
        if tuple(output.shape) != (rows, width) and (self._classes or tuple(output.shape) != (rows,)):
            asked = f"{width} outputs per row" if self._classes else "one number per row"
            raise Unsuitable(f"the network gives outputs of shape {tuple(output.shape)} for {rows} rows, not {asked}")


def _probabilities(outputs: Any) -> Any:
    """One column per class."""
    if outputs.shape[1] == 1:
        second = torch.sigmoid(outputs)
        return torch.cat([1 - second, second], dim=1)
    return torch.softmax(outputs, dim=1)


def _check_buffers(network: Any) -> None:
    """Whole numbers count something at the site; other buffers that are kept would have to be averaged somehow."""
    kept = network.state_dict().keys() - dict(network.named_parameters()).keys()
    for name, buffer in network.named_buffers():
        if name in kept and (buffer.is_floating_point() or buffer.is_complex()):
            raise ModelError(
                f"the network keeps numbers that are no weights ({name}), and sites could not share them; a constant "
                "is registered with persistent=False"
            )
