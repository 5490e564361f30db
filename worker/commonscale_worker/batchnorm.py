"""BatchNorm over sites: Federated BatchNorm (FBN), FixBN, Naive BatchNorm, and statistics that stay at the site.

With m, v the running statistics that all sites share, and u the values of a channel in a batch:

    fbn     normalises with m, v as constants, and collects S1 = Σ (u - m), S2 = Σ (u - m)² and the number of values,
            from which the sites make the statistics of the pooled batch (Algorithm 2 of "Federated BatchNorm")
    naive   ordinary BatchNorm, whose running statistics start from m, v in every round and are averaged after it
    fixbn   naive in the first half of the rounds, then m, v as constants that no longer change
    local   ordinary BatchNorm, whose running statistics never leave the site

Differs from the paper: with several batches in a round, m and v of fbn stay the same within it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from commonscale_worker.errors import BatchnormUnset, ModelError
from commonscale_worker.models import Layer
from commonscale_worker.vectors import Array, Tensors

POOLED = ("fbn", "fixbn", "naive")


class SharedNorm(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of a BatchNorm layer, with its weight and bias."""

    def __init__(self, layer: Any, kind: str) -> None:
        super().__init__()
        self.channels: int = layer.num_features
        self.momentum: float = layer.momentum
        self.eps: float = layer.eps
        self.weight, self.bias = layer.weight, layer.bias
        self._collects = kind == "fbn"
        # Whether batches are normalised by the shared statistics, which no batch changes.
        self.constant = self._collects
        self.training = layer.training
        self.set_statistics(torch.zeros(self.channels).double(), torch.ones(self.channels).double())

    def set_statistics(self, mean: Any, variance: Any) -> None:
        """The running statistics, as doubles; a new round's sums begin at 0."""
        # Not buffers, which a change of the module's precision would round.
        self._mean, self._variance = mean, variance
        self._rounded: tuple[Any, Any] | None = None
        self.sum = torch.zeros_like(mean)
        self.square = torch.zeros_like(mean)
        self.count = 0

    @property
    def statistics(self) -> tuple[Any, Any]:
        """Running mean and variance, as doubles."""
        mean, variance = self._rounded or (self._mean, self._variance)
        return mean.double(), variance.double()

    def forward(self, values: Any) -> Any:
        """Normalise a batch."""
        batch_statistics = self.training and not self.constant
        if self.training and self._collects:
            self._collect(values)
        if self._rounded is None or self._rounded[0].dtype != values.dtype:
            # Copies: an ordinary BatchNorm changes them in place.
            self._rounded = tuple(part.to(values, copy=True) for part in self.statistics)
        assert self._rounded is not None
        mean, variance = self._rounded
        return functional.batch_norm(
            values, mean, variance, self.weight, self.bias, batch_statistics, self.momentum, self.eps
        )

    def _collect(self, values: Any) -> None:
        with torch.no_grad():
            others = [dimension for dimension in range(values.dim()) if dimension != 1]
            mean = self._mean.to(values.device)
            difference = values.double() - mean.reshape(1, -1, *(1,) * (values.dim() - 2))
            self.sum = self.sum.to(mean) + difference.sum(others)
            self.square = self.square.to(mean) + (difference * difference).sum(others)
            self.count += values.numel() // self.channels


class Norms:
    """All BatchNorm layers of a network, replaced as the job's `batchnorm` says."""

    def __init__(self, network: Any, kind: str) -> None:
        self.kind = kind
        self._layers: dict[str, SharedNorm] = {}
        self._replaced: dict[Any, SharedNorm] = {}
        self.network = self._replace(network, "")

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def layers(self) -> list[Layer]:
        """Those whose statistics are pooled."""
        if self.kind not in POOLED:
            return []
        return [Layer(name, layer.channels, layer.momentum) for name, layer in self._layers.items()]

    def begin(self, round_number: int, rounds: int) -> None:
        """FixBN: the first half of the rounds is that of Naive BatchNorm."""
        if self.kind == "fixbn":
            for layer in self._layers.values():
                layer.constant = 2 * round_number > rounds

    def set_statistics(self, mean: Array, variance: Array) -> None:
        """Of all layers, one after the other."""
        ends = np.cumsum([layer.channels for layer in self._layers.values()])[:-1]
        for layer, *parts in zip(self._layers.values(), np.split(mean, ends), np.split(variance, ends)):
            layer.set_statistics(*(torch.from_numpy(part.copy()) for part in parts))

    def statistics(self) -> tuple[Array, Array]:
        """Running means and variances of all layers, one after the other."""
        pairs = [layer.statistics for layer in self._layers.values()]
        means, variances = ([part.cpu().numpy().copy() for part in side] for side in zip(*pairs))
        return np.concatenate(means), np.concatenate(variances)

    def estimate(self, batches: Iterable[Any]) -> None:
        """Running statistics of a site that has none yet, from its own rows: a mean over batches."""
        self.network.eval()
        momenta = [layer.momentum for layer in self._layers.values()]
        for number, batch in enumerate(batches, 1):
            for layer in self._layers.values():
                layer.training, layer.momentum = True, 1 / number
            with torch.no_grad():
                self.network(batch)
        for layer, momentum in zip(self._layers.values(), momenta):
            layer.momentum = momentum

    def reset(self) -> None:
        """As in a new network."""
        for layer in self._layers.values():
            layer.set_statistics(torch.zeros(layer.channels).double(), torch.ones(layer.channels).double())

    def results(self) -> Tensors:
        """What a round's Result says of them."""
        layers = self._layers.values()
        if self.kind == "fbn":
            return {
                "sum": np.concatenate([layer.sum.cpu().numpy() for layer in layers]),
                "square": np.concatenate([layer.square.cpu().numpy() for layer in layers]),
                "count": np.array([layer.count for layer in layers], np.float64),
            }
        # In the second half of FixBN they are what they were.
        return dict(zip(("mean", "variance"), self.statistics()))

    def _replace(self, module: Any, name: str) -> Any:
        """The module, or what takes its place; the same one again where it stands at two places."""
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            if module not in self._replaced:
                self._replaced[module] = self._layers[name] = self._shared(module, name)
            return self._replaced[module]
        # Not named_children, which leaves out the second place of a module that stands at two.
        for child_name, child in [pair for pair in module._modules.items() if pair[1] is not None]:
            setattr(module, child_name, self._replace(child, f"{name}.{child_name}" if name else child_name))
        return module

    def _shared(self, layer: Any, name: str) -> SharedNorm:
        if not self.kind:
            raise BatchnormUnset(
                f'the network has a BatchNorm layer ({name or "itself"}): choose batchnorm = "fbn", "fixbn", "naive" '
                'or "local" in [train]'
            )
        if not layer.track_running_stats or not layer.momentum:
            raise ModelError(
                f"BatchNorm layer {name} keeps no running statistics with a momentum: they cannot be shared"
            )
        return SharedNorm(layer, self.kind)
