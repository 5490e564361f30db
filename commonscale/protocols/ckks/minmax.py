"""PPF min-max under encryption: three circuits that compute the same.

Algorithm 4 (PPFMinMax) of "Bridging Local and Federated Data Normalization in FL". Every site encrypts its largest
values and its negated smallest ones, divided by agreed bounds V; the coordinator finds the largest of each under
encryption, with collective refreshes; the results are opened to all.

`sequential`  the paper's loop, the baseline: one site after the other, minima and maxima apart: 2(P-1) comparisons
`tree`        sites side by side in the slots, minima and maxima together: ceil(log2 P) comparisons
`all-pairs`   every pair of sites in slots of its own: one comparison. Site i has the weight Π_j step(x_i - x_j); tied
              sites share it, so the weighted sum is divided by the sum of the weights

A comparison is max(a, b) = (a + b)/2 + d·sign(d)/2 with d = a - b; errors stay below 1e-5 of V.

Differs from the paper: slots that hold anything but results are cleared before the opening.

Reveals: minimum and maximum of each pooled column, to all sites and the coordinator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from commonscale.protocols.ckks.circuit import Circuit, Handle
from commonscale.transforms.ordering import Floats
from crypto.ckks.arithmetic import with_levels
from crypto.ckks.inverse import inverse, line
from crypto.ckks.sign import sign

# Stands at a site for "no value": the least there is.
LOWEST = -1.0
# Rotation keys are long, rotations quick: two keys, used several times.
_LONG_STEP = 8
# Opening adds noise of about 1e-6; results are lifted over it, and two primes hold them.
_GAIN = 2.0**16
_TOWERS = 2
_WEIGHT_SLACK = 1.01
_WEIGHT_ERROR = 1e-8


@dataclass(frozen=True)
class Layout:
    """Numbers of all sites in slots: `rows` rows of `width` numbers; columns beyond that in further ciphertexts."""

    parties: int
    numbers: int
    slots: int
    rows: int

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return min(self.numbers, self.slots // self.rows)

    @property
    def chunks(self) -> int:
        """Ciphertexts."""
        return math.ceil(self.numbers / self.width)

    def place(self, mine: Floats, rows: dict[int, float]) -> list[Floats]:
        """My numbers, times a factor, in some rows; nothing in the others."""
        found: list[Floats] = []
        for start in range(0, self.numbers, self.width):
            chunk = np.zeros((self.rows, self.width))
            part = mine[start : start + self.width]
            for row, factor in rows.items():
                chunk[row, : len(part)] += factor * part
            found.append(chunk.ravel())
        return found

    def first_row(self, value: float = 1.0) -> Floats:
        """A value in the first row, 0 elsewhere."""
        found = np.zeros(self.slots)
        found[: self.width] = value
        return found

    @property
    def lengths(self) -> list[int]:
        """Numbers of the first row in each ciphertext."""
        starts = range(0, self.numbers, self.width)
        return [min(self.width, self.numbers - start) for start in starts]


def layout(variant: str, parties: int, columns: int, slots: int) -> Layout:
    """The layout of a variant."""
    rows = {"sequential": 1, "tree": parties, "all-pairs": parties * (parties - 1)}[variant]
    # The paper keeps minima and maxima apart.
    return Layout(parties, columns if variant == "sequential" else 2 * columns, slots, rows)


def rotations(variant: str, plan: Layout) -> tuple[int, ...]:
    """The rotation keys that a variant needs."""
    if variant == "tree":
        return (plan.width,) if plan.parties <= _LONG_STEP else (plan.width, _LONG_STEP * plan.width)
    if variant == "all-pairs":
        return plan.width, plan.parties * plan.width
    return ()


Mine = Callable[[], Floats] | None


async def sequential(circuit: Circuit, plan: Layout, _: int, mine: Mine) -> Floats:
    """Lines 14 to 26: returns maxima, then negated minima."""
    found: list[Handle] = []
    for side in (0, 1):
        half = partial(_half, plan, mine, side) if mine else None
        best, *others = await circuit.inputs(half, plan.chunks)
        for other in others:
            best = await larger(circuit, best, other)
        found.append(best)
    names = zip(OPENINGS["sequential"], found, strict=True)
    return 2 * np.concatenate([await _open_first_row(circuit, plan, best, name) for name, best in names])


def _half(plan: Layout, mine: Callable[[], Floats], side: int) -> list[Floats]:
    numbers = mine()
    return plan.place(numbers[side * plan.numbers : (side + 1) * plan.numbers], {0: 0.5})


async def tree(circuit: Circuit, plan: Layout, index: int, mine: Mine) -> Floats:
    """Pairs, then pairs of pairs: a maximum may be taken twice, so windows may overlap."""
    make = (lambda: plan.place(mine(), {index: 0.5})) if mine else None
    (best,) = await circuit.input([make], plan.chunks)
    span = 1
    while span < plan.parties:
        step = min(span, plan.parties - span)
        best = await larger(circuit, best, await _shifted(circuit, best, step, plan.width))
        span += step
    return 2 * await _open_first_row(circuit, plan, best, *OPENINGS["tree"])


async def all_pairs(circuit: Circuit, plan: Layout, index: int, mine: Mine) -> Floats:
    """Row d·P + i compares site i with site i + d + 1."""
    parties, stride = plan.parties, plan.parties * plan.width
    rivals: dict[int, float] = {}
    for d in range(parties - 1):
        rivals[d * parties + index] = 0.5
        rivals[d * parties + (index - d - 1) % parties] = -0.5
    compared = (lambda: plan.place(mine(), rivals)) if mine else None
    own = (lambda: plan.place(mine(), {index: 1.0})) if mine else None
    difference, numbers = await circuit.input([compared, own], plan.chunks)
    step = await circuit.add(await sign(circuit, difference, scale=0.5), 0.5)
    weight = await _product(circuit, step, parties - 1, stride)
    weight, numbers = await with_levels(circuit, 1, [weight, numbers])
    # Sums over the sites end in the first row; whatever stands elsewhere is cleared.
    total = await _sum(circuit, await circuit.mul(weight, numbers), parties, plan.width)
    weights = await _sum(circuit, weight, parties, plan.width)
    total, weights = await with_levels(circuit, 1, [total, weights])
    kappa = _WEIGHT_SLACK**2 * 2 ** (parties - 1) / parties
    slope, offset = line(kappa)
    scaled, total = await circuit.mul_all(
        [(weights, plan.first_row(slope / _WEIGHT_SLACK)), (total, plan.first_row(_GAIN / _WEIGHT_SLACK))]
    )
    share = await inverse(circuit, await circuit.add(scaled, plan.first_row(offset)), kappa, _WEIGHT_ERROR)
    total, share = await with_levels(circuit, 1, [total, share])
    (name,) = OPENINGS["all-pairs"]
    return np.concatenate(await circuit.open(await circuit.mul(total, share), plan.lengths, name, _TOWERS)) / _GAIN


# What the openings of a variant are called.
OPENINGS = {"sequential": ("maxima", "minima"), "tree": ("extremes",), "all-pairs": ("extremes",)}
VARIANTS = {"sequential": sequential, "tree": tree, "all-pairs": all_pairs}


async def larger(circuit: Circuit, a: Handle, b: Handle) -> Handle:
    """max(a, b) for numbers in [-1/2, 1/2]."""
    a, b = await with_levels(circuit, 1, [a, b])
    d = await circuit.sub(a, b)
    middle = await circuit.mul(await circuit.add(a, b), 0.5)
    s = await sign(circuit, d, scale=0.5)
    d, s = await with_levels(circuit, 1, [d, s])
    return await circuit.add(middle, await circuit.mul(d, s))


async def _shifted(circuit: Circuit, a: Handle, rows: int, width: int) -> Handle:
    """Row i takes what was in row i + rows."""
    while rows >= _LONG_STEP:
        a, rows = await circuit.rotate(a, _LONG_STEP * width), rows - _LONG_STEP
    for _ in range(rows):
        a = await circuit.rotate(a, width)
    return a


async def _repeated(circuit: Circuit, a: Handle, times: int, stride: int) -> Handle:
    for _ in range(times):
        a = await circuit.rotate(a, stride)
    return a


async def _product(circuit: Circuit, a: Handle, count: int, stride: int) -> Handle:
    """The product of `count` blocks that begin at this slot: doubled, and one more where the count is odd."""
    if count == 1:
        return a
    half = await _product(circuit, a, count // 2, stride)
    (half,) = await with_levels(circuit, 1, [half])
    found = await circuit.mul(half, await _repeated(circuit, half, count // 2, stride))
    if count % 2:
        a, found = await with_levels(circuit, 1, [a, found])
        found = await circuit.mul(found, await _repeated(circuit, a, count - 1, stride))
    return found


async def _sum(circuit: Circuit, a: Handle, count: int, stride: int) -> Handle:
    """The sum of `count` blocks that begin at this slot."""
    if count == 1:
        return a
    half = await _sum(circuit, a, count // 2, stride)
    found = await circuit.add(half, await _repeated(circuit, half, count // 2, stride))
    return await circuit.add(found, await _repeated(circuit, a, count - 1, stride)) if count % 2 else found


async def _open_first_row(circuit: Circuit, plan: Layout, a: Handle, name: str) -> Floats:
    (a,) = await with_levels(circuit, 1, [a])
    lifted = await circuit.mul(a, plan.first_row(_GAIN))
    return np.concatenate(await circuit.open(lifted, plan.lengths, name, _TOWERS)) / _GAIN
