"""Numbers that only the sites learn, as the coordinator holds them: they may be handed on, never read."""

from typing import NoReturn, TypeVar

T = TypeVar("T")


class Hidden:
    """Stands for whatever the sites know and this role does not."""

    def __repr__(self) -> str:
        return "HIDDEN"

    def __bool__(self) -> NoReturn:
        raise TypeError("a hidden value has no truth here: no role without data may branch on it")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Hidden):
            return True
        raise TypeError("a hidden value is compared with nothing here: no role without data may branch on it")

    __hash__ = object.__hash__


HIDDEN = Hidden()


def known(value: T | Hidden) -> T:
    """A value at a role that must know it."""
    if isinstance(value, Hidden):
        raise TypeError("a role without data asked for what only the sites know")
    return value
