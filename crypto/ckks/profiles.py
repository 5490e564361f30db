"""Parameter sets. All but `test` give 128 bits of security by the homomorphic encryption standard.

A smaller ring with more refreshes is quicker than a large ring with few, unless latency decides: every profile with
ring 2^14 refreshes after each few multiplications, `high-latency` after about nine.
"""

from dataclasses import dataclass

# Collective bootstrapping needs this many towers beside those that a circuit uses.
REFRESH_TOWERS = 4


@dataclass(frozen=True)
class Profile:
    """What a context is made from."""

    name: str
    ring_bits: int
    depth: int
    scale_bits: int
    first_bits: int = 60
    digits: int = 0
    hybrid: bool = True
    secure: bool = True

    @property
    def slots(self) -> int:
        """Numbers in one ciphertext."""
        return 1 << (self.ring_bits - 1)

    @property
    def levels(self) -> int:
        """Multiplications in a row between two refreshes."""
        return self.depth - 2


PROFILES = {
    profile.name: profile
    for profile in (
        # Sums of counts: no multiplication, so key switching is never used.
        Profile("counts", 14, 1, 40, hybrid=False),
        Profile("inverse", 14, 4, 59, digits=5),
        Profile("comparison", 14, 5, 50),
        Profile("high-latency", 15, 11, 50),
        Profile("high-latency-inverse", 15, 10, 59, digits=6),
        Profile("test", 11, 5, 50, secure=False),
        Profile("test-inverse", 11, 4, 59, secure=False),
        Profile("test-counts", 11, 1, 40, hybrid=False, secure=False),
    )
}

# For a purpose, by what a pipeline calls a profile.
_FOR_PURPOSE = {
    "standard": {"comparison": "comparison", "inverse": "inverse", "counts": "counts"},
    "high-latency": {"comparison": "high-latency", "inverse": "high-latency-inverse", "counts": "counts"},
    "test": {"comparison": "test", "inverse": "test-inverse", "counts": "test-counts"},
}


def profile_for(name: str, purpose: str) -> Profile:
    """The parameters of a pipeline's profile for a purpose: comparison, inverse or counts."""
    return PROFILES[_FOR_PURPOSE[name][purpose]]
