"""Whether any of many byte strings stands in what somebody saw: one pass over it, not one for each."""

from collections.abc import Iterable

import numpy as np

_WORD = 8


def present(view: bytes, needles: Iterable[bytes]) -> set[bytes]:
    """Those that occur, wherever they begin."""
    wanted = set(needles)
    long = [needle for needle in wanted if len(needle) >= _WORD]
    heads = np.unique(np.frombuffer(b"".join(needle[:_WORD] for needle in long), "<u8"))
    seen: set[int] = set()
    for offset in range(min(_WORD, len(view) - _WORD + 1) if len(heads) else 0):
        words = np.frombuffer(view, "<u8", (len(view) - offset) // _WORD, offset)
        nearest = np.minimum(np.searchsorted(heads, words), len(heads) - 1)
        seen.update(heads[np.unique(nearest[heads[nearest] == words])].tolist())
    # A head that occurs may go on differently.
    likely = [needle for needle in wanted if len(needle) < _WORD or int.from_bytes(needle[:_WORD], "little") in seen]
    return {needle for needle in likely if needle in view}
