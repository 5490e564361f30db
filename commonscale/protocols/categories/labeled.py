"""`apsi`: labeled private set intersection between every two sites; nobody but the two learns anything of it.

Cong et al. 2021 on OpenFHE's BFV (crypto.apsi), as in section 7.1 of "Privacy-Preserving Tabular Data Transformation in
FL". All columns in one execution; a site asks every site before it in the ring (or every other: `both_directions`). For
a querier and a holder:
1. The querier sends its values, blinded, with dummies up to the public bound, sealed to the holder.
2. The holder multiplies them by a secret of this pair alone, puts its own tokens with their labels, the ring's
   identifiers, into bins, and sends the points and how it hashes to bins.
3. The querier hashes its tokens to the bins and sends the powers of one item a bin, encrypted.
4. The holder evaluates, under encryption, the polynomials of its bins: one is zero at its items, one is the label
   there. It sends both.
5. The querier decrypts: where the first is zero, the second is the holder's identifier.
It keeps the lowest identifier that it has found, or its own.

Differs from the paper: one direction is enough, because only a lower identifier is ever taken over; all columns go into
one execution instead of one each. A known value in spare slots shows whether the noise left the answer readable.
Backend "native" takes the authors' implementation for steps 1 to 5: labeled_native.

Reveals: to the querier, of its own values, which the holder has, and the holder's identifiers of these; nothing to the
holder, nothing to the coordinator.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from commonscale.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage, TooManyCategories
from commonscale.protocols.categories import labeled_native, tokens
from commonscale.protocols.categories.items import Identifiers, Values
from commonscale.v1.protocols_pb2 import BlindedItems, PsiAnswer, PsiOffer, PsiQuery
from crypto import oprf

# What parameters were made for.
MOST = 200_000

REVEALS = "of its own values, which of them each site before it in the ring holds"
REVEALS_BOTH = "of its own values, which of them each other site holds"

T = TypeVar("T")
Query = Callable[[Channel, str, Sequence[bytes], int], Awaitable[list[int | None]]]
Serve = Callable[[Channel, str, Sequence[bytes], Sequence[int], int], Awaitable[list[int | None]]]


async def party(
    ch: Channel,
    values: Values,
    mine: Identifiers,
    bound: int,
    *,
    both_directions: bool = False,
    backend: str = "openfhe",
) -> Identifiers:
    """Role of a site: my identifiers, with the lowest one of another holder in place of mine."""
    at, items = ch.parties.index(ch.me), values.items()
    query, answer = _pair_roles(backend, bound)
    others = [site for site in ch.parties if site != ch.me]
    ask = others if both_directions else ch.parties[:at]
    serve = others if both_directions else ch.parties[at + 1 :]
    labels = mine.tolist()
    queries = [partial(query, ch, holder, items, bound) for holder in ask]
    answers = [partial(answer, ch, querier, items, labels, bound) for querier in serve]
    found: list[list[int | None]] = (await concurrently([*queries, *answers]))[: len(ask)]
    adopted = mine.copy()
    for holder, theirs in zip(ask, found, strict=True):
        for number, label in enumerate(theirs):
            if label is not None and ch.parties.index(holder) < at:
                adopted[number] = min(int(adopted[number]), label)
    return adopted


def _pair_roles(backend: str, bound: int) -> tuple[Query, Serve]:
    """Querier and holder of one pair, if they can take so many values."""
    if backend == "native":
        labeled_native.check(bound)
        return labeled_native.query, labeled_native.serve
    if bound > MOST:
        raise TooManyCategories(
            f"Labeled intersection takes at most {MOST:,} values of all columns together, filled up to their bounds.",
            "Use variant 'oprf', or fewer columns in a step.",
        )
    return _query, _serve


async def _query(ch: Channel, holder: str, items: Sequence[bytes], bound: int) -> list[int | None]:
    """Role of the querier."""
    from crypto import apsi

    inverses = await tokens.send_blinded(ch, holder, items, bound)  # 1.
    offer = await ch.recv(PsiOffer, holder)
    points = tokens.split_points(ch, holder, offer.points, bound)
    mine = await offload(tokens.finalize, ch, holder, inverses, points)
    parameters = apsi.choose(bound, bound)
    raw = await ch.keep(f"QueryKey-{holder}", lambda: apsi.QueryKey.generate(parameters).to_bytes())
    key = await offload(apsi.QueryKey.from_bytes, parameters, raw)

    def query() -> PsiQuery:
        made = checked(ch, holder, lambda: apsi.gen_query(parameters, key, offer.hash_seed, mine))
        return PsiQuery(polynomials=made)

    await ch.send(holder, PsiQuery, partial(offload, query))  # 3.
    answer = await ch.recv(PsiAnswer, holder)

    def extract() -> list[int | None]:  # 5.
        return apsi.extract(parameters, key, offer.hash_seed, mine, answer.polynomials)

    return await offload(checked, ch, holder, extract)


async def _serve(
    ch: Channel, querier: str, items: Sequence[bytes], labels: Sequence[int], bound: int
) -> list[int | None]:
    """Role of the holder, who finds nothing."""
    from crypto import apsi

    key = await tokens.own_key(ch, f"OprfKey-{querier}")
    seed = await ch.keep(f"Seed-{querier}", lambda: secrets.token_bytes(32))
    asked = tokens.split_points(ch, querier, (await ch.recv(BlindedItems, querier)).points, bound)
    mine = await offload(oprf.tokens, key, items)
    parameters = apsi.choose(bound, bound)
    try:
        database = await offload(apsi.Database.build, parameters, mine, labels, apsi.seeded(seed))
    except apsi.PlacementError:
        raise TooManyCategories(f"{ch.me}: its values do not fit into the bins.", "Submit the job again.") from None

    def offer() -> PsiOffer:  # 2.
        points = b"".join(tokens.evaluate(ch, key, querier, asked))
        return PsiOffer(points=points, hash_seed=database.hash_seed)

    await ch.send(querier, PsiOffer, partial(offload, offer))
    query = await ch.recv(PsiQuery, querier)

    def answer() -> PsiAnswer:  # 4.
        return PsiAnswer(polynomials=checked(ch, querier, lambda: apsi.gen_answer(database, list(query.polynomials))))

    await ch.send(querier, PsiAnswer, partial(offload, answer))
    return []


def checked(ch: Channel, peer: str, work: Callable[[], T]) -> T:
    """What a peer's bytes made impossible, as our error."""
    try:
        return work()
    except ValueError as error:
        raise BadMessage(f"{peer} sent something in {ch.prefix} of {ch.run} that cannot be used: {error}.") from None
