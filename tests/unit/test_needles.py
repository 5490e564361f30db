"""The search that privacy tests rest on finds what is there, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from tests.needles import present


@given(
    st.lists(st.binary(max_size=12), max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=8),
)
def test_it_finds_what_a_plain_search_finds(parts: list[bytes], cuts: list[tuple[int, int]]) -> None:
    """Pieces of the view at any place and of any length, and pieces that are not in it."""
    view = b"\0".join(parts)
    needles = {view[start : start + length] for start, length in cuts} | set(parts) | {b"not there at all", b"no"}
    assert present(view, needles) == {needle for needle in needles if needle in view}


def test_a_head_that_goes_on_differently_is_not_found() -> None:
    """Eight bytes are equal, the ninth is not."""
    assert present(b"12345678x", [b"12345678y", b"2345678x", b"8x"]) == {b"2345678x", b"8x"}
