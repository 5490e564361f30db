"""`apsi`: labeled private set intersection between every two sites; nobody but the two learns anything of it.

Cong et al. 2021 on OpenFHE's BFV (crypto.apsi), as in section 7.1 of "Privacy-Preserving Tabular Data Transformation in
FL". All columns in one execution; a site asks every site before it in the ring (or every other: `both_directions`). For
a querier and a holder:
1. The querier sends its values, blinded, with dummies up to the public bound, sealed to the holder.
2. The holder multiplies them by a secret of this pair alone, puts its own tokens with their labels, the ring's
   identifiers, into bins, and sends the points and how it hashes to bins.
3. The querier hashes its tokens to the bins and sends the powers of one item per bin, encrypted.
4. The holder evaluates, under encryption, the polynomials of its bins: one is zero at its items, one is the label
   there. It sends both.
5. The querier decrypts: where the first is zero, the second is the holder's identifier.
It keeps the lowest identifier that it has found, or its own.

Differs from the paper: one direction is enough, because only a lower identifier is ever taken over; all columns go into
one execution instead of one each. A known value in spare slots shows whether the noise left the answer readable.
Method `apsi-native` takes the authors' implementation for steps 1 to 5: labeled_native.

Reveals: to the querier, of its own values, which the holder has, and the holder's identifiers of these; nothing to the
holder, nothing to the coordinator.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from commonscale.channel.channel import Channel
from commonscale.concurrency import concurrently, offload
from commonscale.errors import BadMessage, TooManyCategories
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.protocols.psi import labeled_native, tokens
from commonscale.protocols.psi.items import Identifiers, Values
from commonscale.reveal import Reveal
from commonscale.v1.protocols_pb2 import BlindedItems, PsiAnswer, PsiOffer, PsiQuery
from crypto import oprf

# What parameters were made for.
MOST = 200_000

REVEALS = Reveal("psi", "of its own values, which of them each site before it in the ring holds", "sites")
REVEALS_BOTH = Reveal("psi", "of its own values, which of them each other site holds", "sites")


async def merge(
    ch: Channel, values: Values | Hidden, mine: Identifiers | Hidden, bound: int, *, both_directions: bool, native: bool
) -> Identifiers | Hidden:
    """All roles: a site's identifiers, with the lowest one of another holder in place of its own."""
    ch = ch.under(REVEALS_BOTH if both_directions else REVEALS)
    if ch.is_coordinator:
        ch.opens()
        return HIDDEN
    _check_size(bound, native)
    query, serve = (labeled_native.query, labeled_native.serve) if native else (_query, _serve)
    adopted, at, items = known(mine).copy(), ch.sites.index(ch.me), known(values).items()
    queries = [partial(query, ch, site, items, bound) for site in (ch.others if both_directions else ch.sites[:at])]
    askers = ch.others if both_directions else ch.sites[at + 1 :]
    answers = [partial(serve, ch, site, items, adopted.tolist(), bound) for site in askers]
    found = await concurrently([*queries, *answers])
    ch.opens()
    # Those who come before me were asked first; only they can have lower identifiers.
    for theirs in found[:at]:
        for number, label in enumerate(theirs):
            if label is not None:
                adopted[number] = min(int(adopted[number]), label)
    return adopted


def _check_size(bound: int, native: bool) -> None:
    """Raise before anything is sent, where there may be more values than the method takes."""
    if native:
        labeled_native.check(bound)
    elif bound > MOST:
        raise TooManyCategories(
            f"Labeled intersection takes at most {MOST:,} values of all columns together, filled up to their bounds.",
            "Use method 'oprf', or fewer columns in a step.",
        )


async def _query(ch: Channel, holder: str, items: Sequence[bytes], bound: int) -> list[int | None]:
    """Role of the querier."""
    from crypto import apsi

    inverses = await tokens.send_blinded(ch, holder, items, bound)  # 1.
    offer = await ch.recv(PsiOffer, holder)
    mine = await offload(tokens.finalize, ch, holder, inverses, offer.points, bound)
    parameters = apsi.choose(bound, bound)
    raw = await ch.keep(f"QueryKey-{holder}", lambda: apsi.QueryKey.generate(parameters).to_bytes())
    key = await offload(apsi.QueryKey.from_bytes, parameters, raw)

    def query() -> PsiQuery:
        with _checked(ch, holder):
            return PsiQuery(polynomials=apsi.gen_query(parameters, key, offer.hash_seed, mine))

    await ch.send(holder, PsiQuery, partial(offload, query))  # 3.
    answer = await ch.recv(PsiAnswer, holder)
    with _checked(ch, holder):
        return await offload(apsi.extract, parameters, key, offer.hash_seed, mine, answer.polynomials)  # 5.


async def _serve(
    ch: Channel, querier: str, items: Sequence[bytes], labels: Sequence[int], bound: int
) -> list[int | None]:
    """Role of the holder, who finds nothing."""
    from crypto import apsi

    key = await ch.keep(f"OprfKey-{querier}", oprf.gen_key)
    seed = await ch.keep(f"Seed-{querier}", lambda: secrets.token_bytes(32))
    asked = (await ch.recv(BlindedItems, querier)).points
    mine = await offload(oprf.tokens, key, items)
    parameters = apsi.choose(bound, bound)
    try:
        database = await offload(apsi.Database.build, parameters, mine, labels, apsi.seeded(seed))
    except apsi.PlacementError:
        raise TooManyCategories(f"{ch.me}: its values do not fit into the bins.", "Submit the job again.") from None

    def offer() -> PsiOffer:
        return PsiOffer(points=tokens.evaluate(ch, key, querier, asked, bound), hash_seed=database.hash_seed)

    await ch.send(querier, PsiOffer, partial(offload, offer))  # 2.
    query = await ch.recv(PsiQuery, querier)

    def answer() -> PsiAnswer:
        with _checked(ch, querier):
            return PsiAnswer(polynomials=apsi.gen_answer(database, list(query.polynomials)))

    await ch.send(querier, PsiAnswer, partial(offload, answer))  # 4.
    return []


@contextmanager
def _checked(ch: Channel, peer: str) -> Iterator[None]:
    """What a peer's bytes made impossible, as our error."""
    try:
        yield
    except ValueError as error:
        raise BadMessage(f"{peer} sent something in {ch.prefix} of {ch.run} that cannot be used: {error}.") from None
