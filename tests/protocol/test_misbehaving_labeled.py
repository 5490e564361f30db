"""Sites that do not keep to labeled intersection."""

import pytest

from commonscale.concurrency import first_error
from commonscale.errors import BadMessage
from tests.categories import METHODS, assert_one_layout, held
from tests.federation import Federation
from tests.misbehaving.labeled import SiteThatMutatesPolynomials, SiteThatSaysAnotherHashSeed
from tests.misbehaving.roles import error_of, run_with


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("site", "kind", "to"), [("north", "psi.PsiQuery", "east"), ("east", "psi.PsiAnswer", "north")]
)
def test_mutated_polynomials_are_never_a_wrong_identifier(
    federation: Federation, site: str, kind: str, to: str, seed: int
) -> None:
    """A changed query or answer is an error of one of the two."""
    error = error_of(federation, SiteThatMutatesPolynomials(site, kind, seed, to=to), **METHODS["apsi"])
    assert isinstance(error, BadMessage)
    assert "east" in str(error) or "north" in str(error)


@pytest.mark.parametrize("seed", [b"", b"\0" * 1000, None], ids=["none", "long", "another"])
def test_another_hash_seed_is_an_error_or_finds_nothing_wrong(federation: Federation, seed: bytes | None) -> None:
    """A holder that says another way to hash than it uses: no wrong identifier comes of it."""
    try:
        results = run_with(federation, SiteThatSaysAnotherHashSeed("east", seed, to="north"), **METHODS["apsi"])
    except BaseException as caught:  # noqa: BLE001 - whatever the group holds is looked at
        error = first_error(caught)
        assert isinstance(error, BadMessage), repr(error)
        assert "east" in str(error)
    else:
        assert_one_layout(results)
        found = held(results, 0)
        common = {text: n for site in ("east", "south", "west") for text, n in found[site].items()}
        assert all(n == common.get(t) or n not in common.values() for t, n in found["north"].items())
