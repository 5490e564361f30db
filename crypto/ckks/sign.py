"""The sign of slots in [-1, 1], by a composition of odd polynomials of degree 7.

FIRST and AMPLIFY lift small numbers (by 11.1 and 5.8) and send everything else into [0.098, 1.902]; FINISH then brings
[0.095, 1.906] to 1 with an error below 1e-15. Each is the best approximation of 1 in its interval. An interval that
began closer to 0 would gain a little more, but its polynomial would dip nearly to 0 in places, and noise there turns
signs around; none of these dips below 0.09 once it has lifted a number that far.
"""

from collections.abc import Sequence

from crypto.ckks.arithmetic import Arithmetic, H, with_levels

FIRST = (11.144925044214, -64.570680437454, 118.910084477743, -65.386297740949)
AMPLIFY = (5.846712591538, -9.324141903245, 4.726523930286, -0.715421415058)
FINISH = (
    (4.566432811552, -6.566160988751, 3.222870221643, -0.480201749682),
    (2.723637146909, -3.280554484017, 1.861731132936, -0.357164560429),
    (2.193100763449, -2.199206735164, 1.319098378402, -0.313004180086),
    (2.1875, -2.1875, 1.3125, -0.3125),
)
_LIFTED = 0.095
Stage = tuple[float, float, float, float]
# |x|·(1 - |sign(x)|) stays below 2.1e-6 with these.
COMPARE_RESOLUTION = 2.0**-14.5


def stages(resolution: float) -> list[Stage]:
    """The composition that is 1 (to 1e-9) from `resolution` on."""
    found: list[Stage] = [FIRST]
    lifted = 11.13 * resolution
    while lifted < _LIFTED:
        found.append(AMPLIFY)
        lifted *= 5.84
    return [*found, *FINISH]


LEVELS_A_STAGE = 3


async def sign(ops: Arithmetic[H], x: H, resolution: float = COMPARE_RESOLUTION, scale: float = 1.0) -> H:
    """-1, 0 or 1 times `scale` where |x| ≥ resolution or x = 0; something between in between. Leaves no level."""
    *first, last = stages(resolution)
    for stage in (*first, tuple(scale * c for c in last)):
        (x,) = await with_levels(ops, LEVELS_A_STAGE, [x])
        x = await _odd_polynomial(ops, x, stage)
    return x


async def _odd_polynomial(ops: Arithmetic[H], x: H, stage: Sequence[float]) -> H:
    """c1·x + c3·x³ + (c5·x + c7·x³)·x⁴ in three levels."""
    c1, c3, c5, c7 = stage
    x2, c3x, c5x, c7x, c1x = await ops.mul_all([(x, x), (x, c3), (x, c5), (x, c7), (x, c1)])
    x4, c3x3, c7x3 = await ops.mul_all([(x2, x2), (c3x, x2), (c7x, x2)])
    high = await ops.mul(await ops.add(c5x, c7x3), x4)
    return await ops.add(await ops.add(c1x, c3x3), high)
