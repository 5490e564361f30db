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

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from commonscale.ordering import Floats
from commonscale.protocols.ckks.levels import Circuit, Handle, Opening, lengths
from commonscale.reveal import Reveal
from crypto.ckks.arithmetic import with_levels
from crypto.ckks.inverse import inverse, line
from crypto.ckks.profiles import profile_for
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

    sites: int
    numbers: int
    slots: int
    rows: int

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return min(self.numbers, self.slots // self.rows)

    def place(self, mine: Floats, rows: dict[int, float]) -> list[Floats]:
        """My numbers, times a factor, in some rows; nothing in the others."""
        factors, padded = np.zeros(self.rows), np.zeros(self.chunks * self.width)
        factors[list(rows)] = list(rows.values())
        padded[: self.numbers] = mine
        return [(factors[:, np.newaxis] * part).ravel() for part in np.split(padded, self.chunks)]

    def first_row(self, value: float) -> Floats:
        """A value in the first row, 0 elsewhere."""
        found = np.zeros(self.slots)
        found[: self.width] = value
        return found

    @property
    def lengths(self) -> list[int]:
        """Numbers of the first row in each ciphertext."""
        return lengths(self.numbers, self.width)

    @property
    def chunks(self) -> int:
        """Ciphertexts."""
        return len(self.lengths)


def layout(method: str, sites: int, columns: int, profile: str) -> Layout:
    """The layout of a method."""
    slots = profile_for(profile, "comparison").slots
    rows = {"sequential": 1, "tree": sites, "all-pairs": sites * (sites - 1)}[method]
    # The paper keeps minima and maxima apart.
    return Layout(sites, columns if method == "sequential" else 2 * columns, slots, rows)


def rotations(method: str, plan: Layout) -> tuple[int, ...]:
    """The rotation keys that a method needs."""
    if method == "tree":
        return (plan.width,) if plan.sites <= _LONG_STEP else (plan.width, _LONG_STEP * plan.width)
    if method == "all-pairs":
        return plan.width, plan.sites * plan.width
    return ()


# A site's largest values and its negated smallest ones, over their bounds.
Mine = Callable[[], Floats]
# Of two handles.
Operation = Callable[[Handle, Handle], Awaitable[Handle]]


async def sequential(circuit: Circuit, reveal: Reveal, plan: Layout, mine: Mine) -> Floats:
    """Lines 14 to 26: returns maxima, then negated minima."""
    found: list[Handle] = []
    for side in (0, 1):
        best, *others = await circuit.inputs(partial(_half, plan, mine, side), plan.chunks)
        for other in others:
            best = await larger(circuit, best, other)
        found.append(best)
    opened = [await _open_first_row(circuit, plan, best, reveal, side + 1) for side, best in enumerate(found)]
    return 2 * np.concatenate(opened)


def _half(plan: Layout, mine: Mine, side: int) -> list[Floats]:
    return plan.place(np.split(mine(), 2)[side], {0: 0.5})


async def tree(circuit: Circuit, reveal: Reveal, plan: Layout, mine: Mine) -> Floats:
    """Pairs, then pairs of pairs: a maximum may be taken twice, so windows may overlap."""
    (best,) = await circuit.input([lambda: plan.place(mine(), {circuit.index: 0.5})], plan.chunks)
    span = 1
    while span < plan.sites:
        step = min(span, plan.sites - span)
        best = await larger(circuit, best, await _shifted(circuit, best, step, plan.width))
        span += step
    return 2 * await _open_first_row(circuit, plan, best, reveal)


async def all_pairs(circuit: Circuit, reveal: Reveal, plan: Layout, mine: Mine) -> Floats:
    """Row d·P + i compares site i with site i + d + 1."""
    sites, stride, index = plan.sites, plan.sites * plan.width, circuit.index
    rivals: dict[int, float] = {}
    for d in range(sites - 1):
        rivals[d * sites + index] = 0.5
        rivals[d * sites + (index - d - 1) % sites] = -0.5
    difference, numbers = await circuit.input(
        [lambda: plan.place(mine(), rivals), lambda: plan.place(mine(), {index: 1.0})], plan.chunks
    )
    step = await circuit.add(await sign(circuit, difference, scale=0.5), 0.5)
    weight = await _folded(circuit, circuit.mul, step, sites - 1, stride)
    weight, numbers = await with_levels(circuit, 1, [weight, numbers])
    # Sums over the sites end in the first row; whatever stands elsewhere is cleared.
    total = await _folded(circuit, circuit.add, await circuit.mul(weight, numbers), sites, plan.width)
    weights = await _folded(circuit, circuit.add, weight, sites, plan.width)
    total, weights = await with_levels(circuit, 1, [total, weights])
    kappa = _WEIGHT_SLACK**2 * 2 ** (sites - 1) / sites
    slope, offset = line(kappa)
    scaled, total = await circuit.mul_all(
        [(weights, plan.first_row(slope / _WEIGHT_SLACK)), (total, plan.first_row(_GAIN / _WEIGHT_SLACK))]
    )
    share = await inverse(circuit, await circuit.add(scaled, plan.first_row(offset)), kappa, _WEIGHT_ERROR)
    total, share = await with_levels(circuit, 1, [total, share])
    lifted = await circuit.mul(total, share)
    return await circuit.open(lifted, Opening(plan.lengths, reveal, towers=_TOWERS)) / _GAIN


METHODS = {"sequential": sequential, "tree": tree, "all-pairs": all_pairs}


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
    long, short = divmod(rows, _LONG_STEP)
    return await _repeated(circuit, await _repeated(circuit, a, long, _LONG_STEP * width), short, width)


async def _repeated(circuit: Circuit, a: Handle, times: int, stride: int) -> Handle:
    for _ in range(times):
        a = await circuit.rotate(a, stride)
    return a


async def _folded(circuit: Circuit, operation: Operation, a: Handle, count: int, stride: int) -> Handle:
    """Sum or product of `count` blocks that begin at this slot: doubled, and one more where the count is odd."""
    if count == 1:
        return a
    needed = 1 if operation == circuit.mul else 0
    half = await _folded(circuit, operation, a, count // 2, stride)
    (half,) = await with_levels(circuit, needed, [half])
    found = await operation(half, await _repeated(circuit, half, count // 2, stride))
    if count % 2:
        a, found = await with_levels(circuit, needed, [a, found])
        found = await operation(found, await _repeated(circuit, a, count - 1, stride))
    return found


async def _open_first_row(circuit: Circuit, plan: Layout, a: Handle, reveal: Reveal, number: int = 0) -> Floats:
    (a,) = await with_levels(circuit, 1, [a])
    lifted = await circuit.mul(a, plan.first_row(_GAIN))
    return await circuit.open(lifted, Opening(plan.lengths, reveal, number, _TOWERS)) / _GAIN
