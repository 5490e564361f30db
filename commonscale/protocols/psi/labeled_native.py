"""The two roles of `labeled` by the package apsi (crypto.native_apsi): method `apsi-native`.

The same steps and the same knowledge afterwards; four messages, all sealed site to site:
1. The querier sends its items, blinded, with random ones up to the public bound.
2. The holder multiplies them by a key of this pair alone.
3. The querier sends encrypted powers of its items.
4. The holder sends its polynomials there, and the querier opens them: a PsiAnswer, as in `labeled`, because it is what
   shows something.

The package's keys are in a child process and nowhere else. After a crash of the daemon, messages that were made are
sent again from the journal, and a result that was found is read from it. What would still have to be made needs the
child that is gone: StateLost. A child is begun only while the first message of a role is being made; a later one that
finds no child knows that it was begun before the crash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from commonscale.channel.channel import Channel
from commonscale.concurrency import offload
from commonscale.errors import BadMessage, ConfigError, SiteFailed, StateLost, TooManyCategories
from commonscale.v1.protocols_pb2 import NativeMessage, PsiAnswer
from crypto import native_apsi

P = TypeVar("P", native_apsi.Holder, native_apsi.Querier)
T = TypeVar("T")


def check(bound: int) -> None:
    """Raise before anything is sent, where this machine or the size of the sets allows no run."""
    try:
        native_apsi.available()
    except native_apsi.UnavailableError as error:
        raise ConfigError(f"This machine cannot run method 'apsi-native': {error}", "Use method 'apsi'.") from None
    if bound > native_apsi.LARGEST_SET:
        raise TooManyCategories(
            f"Method 'apsi-native' takes at most {native_apsi.LARGEST_SET} values of all columns together, filled up "
            f"to their bounds; these are {bound}.",
            "Use method 'apsi'.",
        )


async def query(ch: Channel, holder: str, items: Sequence[bytes], bound: int) -> list[int | None]:
    """Role of the querier."""
    with _Child(ch, holder, native_apsi.Querier) as child:
        await _send(ch, 1, holder, lambda: child.begin(lambda process: process.request(items, bound)))
        offer = await _recv(ch, 2, holder)
        await _send(ch, 3, holder, lambda: child.go_on(lambda process: process.query(offer)))
        answer = (await ch.scope("native-4").recv(PsiAnswer, holder)).polynomials
        if len(answer) != 1:
            raise BadMessage(f"{holder} sent {len(answer)} pieces in {ch.prefix} of {ch.run} in place of one.")

        def found() -> bytes:
            """For the site's own, encrypted journal."""
            return json.dumps(child.go_on(lambda process: process.extract(answer[0]))).encode()

        labels: list[int | None] = json.loads(await ch.keep(f"Found-{holder}", found))
        return labels


async def serve(
    ch: Channel, querier: str, items: Sequence[bytes], labels: Sequence[int], bound: int
) -> list[int | None]:
    """Role of the holder, who finds nothing."""
    with _Child(ch, querier, native_apsi.Holder) as child:
        request = await _recv(ch, 1, querier)

        def offer() -> bytes:
            child.begin(lambda process: process.open(items, labels, bound))
            return child.go_on(lambda process: process.oprf(request, bound))

        await _send(ch, 2, querier, offer)
        asked = await _recv(ch, 3, querier)

        def answer() -> PsiAnswer:
            return PsiAnswer(polynomials=[child.go_on(lambda process: process.query(asked))])

        await ch.scope("native-4").send(querier, PsiAnswer, partial(offload, answer))
        return []


async def _send(ch: Channel, number: int, receiver: str, make: Callable[[], bytes]) -> None:
    message = partial(offload, lambda: NativeMessage(body=make()))
    await ch.scope(f"native-{number}").send(receiver, NativeMessage, message)


async def _recv(ch: Channel, number: int, sender: str) -> bytes:
    return (await ch.scope(f"native-{number}").recv(NativeMessage, sender)).body


class _Child(Generic[P]):
    """The child process of one role towards one peer: begun once, and never a second time for what is left to do."""

    def __init__(self, ch: Channel, peer: str, kind: type[P]) -> None:
        self._ch = ch
        self._peer = peer
        self._kind: type[P] = kind
        self._process: P | None = None

    def __enter__(self) -> _Child[P]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.close()

    def begin(self, work: Callable[[P], T]) -> T:
        """The first operation, on our own items."""
        try:
            self._process = self._kind()
            return work(self._process)
        except ValueError as error:
            raise self._failed(error) from None

    def go_on(self, work: Callable[[P], T]) -> T:
        """A later one, on bytes of the peer."""
        if self._process is None:
            raise StateLost(
                f"{self._ch.me} was restarted in {self._ch.run}, and its keys towards {self._peer} are gone.",
                "Submit the job again; method 'apsi' goes on after a restart.",
            )
        try:
            return work(self._process)
        except native_apsi.RejectedError as error:
            where = f"{self._ch.prefix} of {self._ch.run}"
            raise BadMessage(f"{self._peer} sent something in {where} that cannot be used: {error}") from None
        except ValueError as error:
            raise self._failed(error) from None

    def _failed(self, error: ValueError) -> SiteFailed:
        return SiteFailed(
            f"{self._ch.me} cannot go on with {self._peer} in {self._ch.run}: {error}",
            "Submit the job again, with method 'apsi' if it comes to the same.",
        )
