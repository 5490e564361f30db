"""Sites and coordinators that do not keep to the protocols of categorical columns.

Whatever has a shape is checked, and the error names who sent it. Some lies cannot be noticed, because only the liar
knows the truth: a keyholder that answers one site under another key, a coordinator that says two tokens are equal, a
site that sends the shares of nothing. Sites then have different ideas of a value; but they still end with one layout,
and no value is shown by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from google.protobuf.message import Message

from commonscale.channel import Channel
from commonscale.concurrency import first_error
from commonscale.errors import BadMessage, CommonscaleError, Disagreement
from commonscale.mailbox import MemoryMailbox
from commonscale.protocols.categories import hidden_sum, layout, threshold
from commonscale.seal import Envelope
from commonscale.slot import ALL, HUB, Slot
from commonscale.transforms.categories import TextRules
from commonscale.v1 import protocols_pb2 as wire
from crypto import field61, oprf
from tests.categories import SITES, VARIANTS, assert_equals_pooled, held, job, run
from tests.federation import CategoryTable, Federation, MemoryJournal

COLUMNS = ["a"]
CELLS = {"east": ["x!", "y!", "e!"], "north": ["x!", "y!", "n!"], "south": ["x!", "s!"], "west": ["x!", "y!", "w!"]}
TABLES = {site: CategoryTable({"a": cells, "y": [1.0] * len(cells)}) for site, cells in CELLS.items()}
Change = Callable[[Any], Any]


class Lying:
    """A role's mailbox that changes what the role sends, or what it is shown."""

    def __init__(self, honest: MemoryMailbox, sent: Callable[[Slot, bytes], bytes] | None = None,
                 shown: Callable[[Slot, bytes], bytes] | None = None) -> None:  # fmt: skip
        self._honest, self._sent, self._shown = honest, sent or _as_it_is, shown or _as_it_is

    async def put(self, slot: Slot, payload: bytes) -> None:
        await self._honest.put(slot, self._sent(slot, payload))

    async def get(self, slot: Slot) -> bytes:
        return self._shown(slot, await self._honest.get(slot))


def _as_it_is(_: Slot, payload: bytes) -> bytes:
    return payload


def changing(kind: str, change: Change, receiver: str | None = None) -> Callable[[Slot, bytes], bytes]:
    """Change messages of one kind: in place, or by returning another one."""
    message_type: type[Message] = getattr(wire, kind.rpartition(".")[2])

    def changed(slot: Slot, payload: bytes) -> bytes:
        if slot.kind != kind or (receiver and slot.receiver != receiver):
            return payload
        message = message_type.FromString(payload)
        made = change(message)
        return (made if isinstance(made, message_type) else message).SerializeToString(deterministic=True)

    return changed


async def all_roles(
    federation: Federation, step: Mapping[str, Any], mailboxes: Mapping[str, Any], tables: Mapping[str, CategoryTable]
) -> dict[str, Any]:
    pipeline, results = job(SITES, COLUMNS, **step), {}

    async def role(name: str) -> None:
        if name == HUB:
            results[name] = await federation.hub(pipeline, mailboxes.get(name))
        else:
            results[name] = await federation.site(name, pipeline, tables[name], mailboxes.get(name))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in (HUB, *federation.members):
                tasks.start_soon(role, name)
    return results


def run_with(
    federation: Federation, liar: str, kind: str, change: Change, *, to: str | None = None, shown_to: str | None = None,
    tables: Mapping[str, CategoryTable] = TABLES, **step: Any,
) -> dict[str, Any]:  # fmt: skip
    """A job in which one role sends something else; the coordinator may show it to one site only."""
    changed = changing(kind, change, to)
    honest = Envelope.seal

    def seal(self: Envelope, slot: Slot, body: bytes) -> bytes:
        return honest(self, slot, changed(slot, body) if self.me == liar else body)

    mailboxes = {
        liar: Lying(federation.mailbox, sent=lambda s, p: changed(s, p) if HUB in (s.sender, s.receiver) else p)
    }
    if shown_to:
        mailboxes = {shown_to: Lying(federation.mailbox, shown=changed)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Envelope, "seal", seal)
        return anyio.run(all_roles, federation, step, mailboxes, tables)


def error_of(*args: Any, **kwargs: Any) -> CommonscaleError:
    """The error of whoever noticed first."""
    with pytest.raises(BaseException) as caught:
        run_with(*args, **kwargs)
    error = first_error(caught.value)
    assert isinstance(error, CommonscaleError), repr(error)
    assert "!" not in str(error), "an error shows no cell"
    return error


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, SITES)


def field_of(name: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda message: setattr(message, name, change(getattr(message, name)))


SIZES: dict[str, Callable[[bytes], bytes]] = {
    "one more": lambda raw: raw + raw[:32],
    "fewer": lambda raw: raw[32:],
    "none": lambda raw: b"",
    "a byte more": lambda raw: raw + b"\0",
    "too many by far": lambda raw: raw * 50,
}
# Whoever sends it, what, which field, in which variant.
SHAPED = {
    "points": ("north", "match.BlindedItems", "points", "oprf"),
    "answers": ("east", "match.EvaluatedItems", "points", "oprf"),
    "tokens": ("north", "match.Tokens", "tokens", "oprf"),
    "positions": (HUB, "match.TokenPositions", "positions", "oprf"),
    "points of a pair": ("north", "psi.BlindedItems", "points", "apsi"),
    "an offer": ("east", "psi.PsiOffer", "points", "apsi"),
    "sealed tokens": ("north", "psi.Tokens", "tokens", "otmppsi-2"),
    "hits": ("west", "psi.Hits", "classes", "otmppsi-2"),
    "members": ("west", "psi.Hits", "members", "otmppsi-3"),
    "identifiers": ("east", "psi.ClassIdentifiers", "entries", "otmppsi-2"),
    "tables": ("north", "psi.ShareTables", "shares", "otmppsi-3"),
    "points for shares": ("west", "psi.BlindedItems", "points", "otmppsi-3"),
    "answers for shares": ("east", "psi.EvaluatedItems", "points", "otmppsi-3"),
    "unblinding": ("west", "psi.Unblinding", "scalars", "otmppsi-3"),
    "places": (HUB, "psi.OwnShares", "places", "otmppsi-3"),
    "own shares": (HUB, "psi.OwnShares", "shares", "otmppsi-3"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("what", SHAPED)
def test_more_or_less_than_the_bound_names_the_sender(federation: Federation, what: str, size: str) -> None:
    """Whatever is sent for every place up to the bound has exactly the bound's length, or is refused."""
    liar, kind, name, variant = SHAPED[what]
    error = error_of(federation, liar, kind, field_of(name, SIZES[size]), **VARIANTS[variant])
    assert isinstance(error, BadMessage)
    assert ("oordinator" if liar == HUB else liar) in str(error)


@pytest.mark.parametrize("liar", SITES)
def test_a_masked_sum_of_another_length_names_its_sender(federation: Federation, liar: str) -> None:
    """The coordinator adds up vectors of one length only."""
    change = lambda m: m.counts.MergeFrom(wire.Counts(elements=m.counts.elements + bytes(8)))  # noqa: E731
    error = error_of(federation, liar, "in-use.MaskedCounts", change)
    assert isinstance(error, BadMessage)
    assert liar in str(error)


# Points


P = 2**255 - 19
LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    P,
    P + 1,
]


@pytest.mark.parametrize("u", LOW_ORDER, ids=range(len(LOW_ORDER)))
@pytest.mark.parametrize(
    ("liar", "kind", "variant"),
    [
        ("north", "match.BlindedItems", "oprf"),
        ("east", "match.EvaluatedItems", "oprf"),
        ("east", "psi.PsiOffer", "apsi"),
        ("east", "psi.EvaluatedItems", "otmppsi-3"),
    ],
)
def test_points_of_low_order_name_their_sender(
    federation: Federation, liar: str, kind: str, variant: str, u: int
) -> None:
    """Zero and its like would show the other's secret, or give every value one token."""
    point = u.to_bytes(32, "little")
    error = error_of(federation, liar, kind, field_of("points", lambda raw: point + raw[32:]), **VARIANTS[variant])
    assert isinstance(error, BadMessage)
    assert f"{liar} sent bytes" in str(error)
    assert "no point" in str(error)


# Tokens and positions


def test_a_token_sent_twice_names_the_site(federation: Federation) -> None:
    """Two of its values would get one position."""
    twice = field_of("tokens", lambda raw: raw[:-32] + 2 * raw[-16:])
    error = error_of(federation, "south", "match.Tokens", twice)
    assert isinstance(error, BadMessage)
    assert "south sent a token twice" in str(error)


@pytest.mark.parametrize(
    "change",
    [lambda raw: 2 * raw[:4] + raw[8:], lambda raw: (64).to_bytes(4, "little") + raw[4:], lambda raw: bytes(len(raw))],
    ids=["one twice", "out of range", "all zero"],
)
def test_positions_that_cannot_be_are_refused(federation: Federation, change: Callable[[bytes], bytes]) -> None:
    """No two of a site's values share one, and all are below sites × bound."""
    error = error_of(
        federation, HUB, "match.TokenPositions", field_of("positions", change), shown_to="north", to="north"
    )
    assert isinstance(error, BadMessage)
    assert "The coordinator sent positions" in str(error)


def assert_one_layout(results: Mapping[str, Any]) -> None:
    """What holds when a lie cannot be noticed: all roles end with the same sizes and the same hash, inside them."""
    assert len({(fitted.sizes, fitted.layout) for fitted in results.values()}) == 1
    for texts in held(results, 0).values():
        assert len(set(texts.values())) == len(texts)
        assert all(0 <= number < results[HUB].sizes[0] for number in texts.values())


def test_swapped_positions_cannot_be_noticed_but_leave_one_layout(federation: Federation) -> None:
    """A coordinator may claim that tokens are equal that are not: it is trusted with matching, not with values.

    It swaps what east and north are told; they end with each other's identifiers, and everyone with one layout.
    """
    slots = {site: Slot("job-1/0", "match.TokenPositions", HUB, site) for site in ("east", "north")}

    async def work() -> dict[str, Any]:
        def swapped(slot: Slot, payload: bytes) -> bytes:
            return payload if slot not in slots.values() else federation.mailbox.slots[other[slot]]

        other = {slots["east"]: slots["north"], slots["north"]: slots["east"]}

        class Swapping(Lying):
            async def get(self, slot: Slot) -> bytes:
                if slot in other:
                    await federation.mailbox.get(other[slot])
                return await super().get(slot)

        lying = Swapping(federation.mailbox, shown=swapped)
        return await all_roles(federation, {}, {"east": lying, "north": lying}, TABLES)

    results = anyio.run(work)
    assert_one_layout(results)
    assert held(results, 0)["south"]["x!"] == held(results, 0)["west"]["x!"], "the others are not touched"


def test_a_keyholder_that_answers_under_another_key_parts_one_site_from_the_others(federation: Federation) -> None:
    """It cannot be noticed; north then shares no value with anyone, and the others are right."""
    other = oprf.gen_key()

    def again(raw: bytes) -> bytes:
        return b"".join(oprf.evaluate(other, [raw[at : at + 32] for at in range(0, len(raw), 32)]))

    results = run_with(federation, "east", "match.EvaluatedItems", field_of("points", again), to="north")
    assert_one_layout(results)
    found = held(results, 0)
    assert found["east"]["x!"] == found["south"]["x!"] == found["west"]["x!"]
    assert found["north"]["x!"] not in found["east"].values()


# What all are told


def flipped(raw: bytes) -> bytes:
    return bytes([raw[0] ^ 1]) + raw[1:]


def other_counts(message: wire.HiddenCounts) -> None:
    # Position for position, one that is in use is no more, or one is that was not.
    elements = np.frombuffer(message.counts.elements, "<u8")
    message.counts.elements = np.roll(elements, 1).tobytes()


async def careless(ch: Channel, domains: Sequence[int], wish: layout.Wish) -> layout.Public:
    """A coordinator that does not mind different layouts."""
    await hidden_sum.coordinator_counts(ch.scope("in-use"), sum(domains))
    gathered = await ch.gather(wire.Layout)
    await ch.broadcast(wire.Confirmations(confirmations=[m.confirmation for m in gathered.values()]))
    return layout.Public((), (), b"")


NOT_THE_SUM = "is not that of what the sites sent"


@pytest.mark.parametrize("delta", [1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("places", [slice(None), slice(0, 1), slice(3, 40), slice(-64, None)])
def test_a_coordinator_that_adds_to_a_hidden_sum_is_noticed(federation: Federation, places: slice, delta: int) -> None:
    """Also if it tells all sites the same: whether a position was in use before would otherwise show in the sizes."""

    def change(message: wire.HiddenCounts) -> None:
        elements = np.frombuffer(message.counts.elements, "<u8").copy()
        elements[places] += np.uint64(delta)
        message.counts.elements = elements.tobytes()

    error = error_of(federation, HUB, "in-use.HiddenCounts", change)
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


@pytest.mark.parametrize("variant", ["oprf", "apsi", "otmppsi-3"])
def test_different_sums_in_use_end_in_a_disagreement(federation: Federation, variant: str) -> None:
    """North sees that it is not the sum of what the sites sent."""
    error = error_of(federation, HUB, "in-use.HiddenCounts", other_counts, shown_to="north", **VARIANTS[variant])
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


def test_sites_notice_different_sums_without_the_coordinator(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that shows north other sums and says nothing is caught by north itself."""
    monkeypatch.setattr(layout, "coordinator", careless)
    error = error_of(federation, HUB, "in-use.HiddenCounts", other_counts, shown_to="north")
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


def swap_signatures(message: wire.Confirmations) -> None:
    message.confirmations[0].signature = message.confirmations[1].signature


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (swap_signatures, "The signature of east"),
        (lambda m: m.confirmations.pop(), "3 confirmations for 4 sites"),
        (lambda m: m.confirmations[2].CopyFrom(m.confirmations[1]), "The signature of south"),
        (lambda m: setattr(m.confirmations[3], "digest", bytes(32)), "The signature of west"),
    ],
    ids=["swapped", "missing", "one for another", "altered"],
)
def test_different_confirmations_are_a_disagreement(federation: Federation, change: Change, says: str) -> None:
    """A coordinator cannot answer for a site."""
    error = error_of(federation, HUB, "Confirmations", change, shown_to="west")
    assert isinstance(error, Disagreement)
    assert says in str(error)


def test_different_group_keys_are_a_disagreement(federation: Federation) -> None:
    """A first site that gives north another key makes it read other sums."""
    error = error_of(federation, "east", "GroupKey", field_of("key", flipped), to="north")
    assert isinstance(error, Disagreement)
    assert NOT_THE_SUM in str(error)


def test_a_group_key_of_another_length_names_its_sender(federation: Federation) -> None:
    """It has 32 bytes."""
    error = error_of(federation, "east", "GroupKey", field_of("key", lambda key: key[:16]))
    assert isinstance(error, BadMessage)
    assert "east sent a key of 16 bytes" in str(error)


def test_counts_that_cannot_be_are_refused(federation: Federation) -> None:
    """Counts that were changed on the way are noticed by all, though not by whom: masks hide that."""
    for count in (5, 1 << 63):
        fresh = Federation(federation.ca.directory.parent / str(count), SITES)
        error = error_of(fresh, "south", "in-use.MaskedCounts", more_rows(count), min_frequency=2)
        assert isinstance(error, Disagreement)
        assert NOT_THE_SUM in str(error)


def test_a_site_may_claim_more_rows_than_it_has(federation: Federation) -> None:
    """Only it knows: rare values are then frequent, for all sites alike; more than any table has are refused."""
    liar = {**TABLES, "south": Exaggerating(TABLES["south"].cells)}
    results = anyio.run(all_roles, federation, {"min_frequency": 2}, {}, liar)
    assert len({(fitted.sizes, fitted.infrequent, fitted.layout) for fitted in results.values()}) == 1
    assert results[HUB].infrequent[0] < 4


class Exaggerating(CategoryTable):
    """Says that it has every value a thousand times as often."""

    def categories(self, columns: Sequence[str], rules: TextRules) -> list[dict[str | None, int]]:
        return [{text: 1000 * n for text, n in column.items()} for column in super().categories(columns, rules)]


def more_rows(count: int) -> Change:
    """Masks are added, so whoever sends a sum of them can add to what is under them."""

    def change(message: wire.MaskedCounts) -> None:
        elements = np.frombuffer(message.counts.elements, "<u8").copy()
        elements += np.uint64(count)
        message.counts.elements = elements.tobytes()

    return change


def test_a_forged_bound_gets_no_values(federation: Federation) -> None:
    """A coordinator that says a lower bound than a site's size: the site sends nothing of its values."""
    tables = {**TABLES, "north": CategoryTable({"a": [f"v{i}" for i in range(20)]})}
    sixteen = field_of("bits", lambda bits: b"\0\0\0\x1e")
    error = error_of(federation, HUB, "bounds.1.Answers", sixteen, tables=tables)
    assert isinstance(error, BadMessage)
    assert "The bound of column 'a' in job-1/0 is below what north asked for" in str(error)
    assert not any(s.sender == "north" and s.kind.startswith("match") for s in federation.mailbox.slots)


@pytest.mark.parametrize("bits", [bytes(4), b"\xff\xff\xff\xfe"], ids=["nobody has a value", "more than any may have"])
def test_nonsense_bounds_are_refused(federation: Federation, bits: bytes) -> None:
    """Nobody fills its set up to a billion values because of a damaged message."""
    error = error_of(federation, HUB, "bounds.1.Answers", field_of("bits", lambda _: bits))
    assert isinstance(error, BadMessage)
    assert "no bound that any of them may ask for" in str(error)


def test_different_bounds_are_noticed_by_the_keyholder(federation: Federation) -> None:
    """A site that was told a larger bound sends more points than the others expect."""
    larger = field_of("bits", lambda bits: b"\0\0\0\x7f")
    error = error_of(federation, HUB, "bounds.1.Answers", larger, shown_to="north")
    assert isinstance(error, BadMessage)
    assert "north" in str(error)


# The ring


def first_to(number: int) -> Change:
    def change(message: Any) -> Any:
        name = "next" if isinstance(message, wire.RingOffsets) else "sizes"
        return type(message)(**{name: [number, *list(getattr(message, name))[1:]]})

    return change


@pytest.mark.parametrize("variant", [{"variant": "ring"}, VARIANTS["apsi"], VARIANTS["otmppsi-2"]], ids=str)
@pytest.mark.parametrize("number", [1 << 41, (1 << 64) - 1])
def test_offsets_that_overflow_name_their_sender(federation: Federation, variant: dict[str, Any], number: int) -> None:
    """No site has so many values."""
    error = error_of(federation, "north", "ring.RingOffsets", first_to(number), **variant)
    assert isinstance(error, BadMessage)
    assert "north sent identifiers" in str(error)


@pytest.mark.parametrize("count", [0, 2])
def test_offsets_of_other_columns_name_their_sender(federation: Federation, count: int) -> None:
    """One number a column."""
    error = error_of(
        federation, "north", "ring.RingOffsets", lambda _: wire.RingOffsets(next=[1] * count), variant="ring"
    )
    assert isinstance(error, BadMessage)
    assert "north sent identifiers" in str(error)


@pytest.mark.parametrize("variant", [{"variant": "ring"}, VARIANTS["apsi"], VARIANTS["otmppsi-3"]], ids=str)
def test_totals_too_small_name_the_first_site(federation: Federation, variant: dict[str, Any]) -> None:
    """A site that has taken more identifiers than there are in all says so."""
    error = error_of(federation, "east", "ring.RingTotals", first_to(0), **variant)
    assert isinstance(error, BadMessage)
    assert "east sent totals" in str(error)


def test_different_totals_are_a_disagreement(federation: Federation) -> None:
    """With a ring alone, they are the size of the layout."""
    error = error_of(federation, "east", "ring.RingTotals", first_to(1000), to="south", variant="ring")
    assert isinstance(error, Disagreement)
    assert "south has another layout than east" in str(error)


def test_identifiers_beyond_the_bounds_are_refused(federation: Federation) -> None:
    """Where there are bounds, a site cannot take more of the ring than they allow."""
    error = error_of(federation, "south", "ring.RingOffsets", first_to(100_000), **VARIANTS["apsi"])
    assert isinstance(error, BadMessage)
    assert "more identifiers" in str(error)


def test_offsets_that_run_backwards_are_noticed_where_the_totals_fall_short(federation: Federation) -> None:
    """A site that passes on zero gives its own and earlier identifiers out again; the totals are then too small."""
    error = error_of(federation, "south", "ring.RingOffsets", first_to(0), variant="ring", padding=0)
    assert isinstance(error, BadMessage)
    assert "below what" in str(error)


# Over-threshold intersection


def invented(message: wire.Hits) -> None:
    """In every place that is no hit, a class of east and north."""
    classes = np.frombuffer(message.classes, "<u4").copy()
    members = np.frombuffer(message.members, np.uint8).copy()
    nothing = np.flatnonzero(classes == threshold.NO_CLASS)
    classes[nothing], members[nothing] = 1000 + nothing, 0b11000000
    message.classes, message.members = classes.tobytes(), members.tobytes()


def test_classes_that_nobody_shares_change_nothing(federation: Federation) -> None:
    """A reconstructor that invents hits and tells north alone: nobody sends it an identifier for them."""
    results = run_with(federation, "west", "psi.Hits", invented, to="north", **VARIANTS["otmppsi-2"])
    assert_equals_pooled(results, TABLES, COLUMNS)


def test_a_class_that_only_the_first_holder_was_told_of_is_refused(federation: Federation) -> None:
    """East is told that north shares everything; north was told nothing of that."""
    error = error_of(federation, "west", "psi.Hits", invented, to="east", **VARIANTS["otmppsi-2"])
    assert isinstance(error, BadMessage)
    assert "east sent an identifier" in str(error)
    assert "north does not share" in str(error)


@pytest.mark.parametrize("variant", ["otmppsi-2", "otmppsi-3"])
def test_one_identifier_for_two_values_is_refused(federation: Federation, variant: str) -> None:
    """A first holder that gives the same one for every class would make two values one."""
    same = lambda raw: b"".join(raw[at : at + 4] + bytes(4) for at in range(0, len(raw), 8))  # noqa: E731
    error = error_of(
        federation, "east", "psi.ClassIdentifiers", field_of("entries", same), to="north", **VARIANTS[variant]
    )
    assert isinstance(error, BadMessage)
    assert "for two values" in str(error)


@pytest.mark.parametrize("kind", ["psi.ShareTables", "psi.OwnShares"])
def test_shares_that_are_no_field_elements_name_their_sender(federation: Federation, kind: str) -> None:
    """A share is below the prime."""
    liar = "north" if kind == "psi.ShareTables" else HUB
    large = field_of("shares", lambda raw: field61.PRIME.to_bytes(8, "little") + raw[8:])
    error = error_of(federation, liar, kind, large, **VARIANTS["otmppsi-3"])
    assert isinstance(error, BadMessage)
    assert "not below the prime" in str(error)
    assert ("coordinator" if liar == HUB else liar) in str(error)


def test_other_shares_lose_a_site_its_hits_and_no_more(federation: Federation) -> None:
    """Random shares cannot be told from real ones: south then shares nothing, and the others are right."""
    rng = np.random.default_rng(3)
    noise = field_of("shares", lambda raw: rng.integers(0, field61.PRIME, len(raw) // 8).astype("<u8").tobytes())
    results = run_with(federation, "south", "psi.ShareTables", noise, **VARIANTS["otmppsi-3"])
    assert_one_layout(results)
    found = held(results, 0)
    assert found["east"]["x!"] == found["north"]["x!"] == found["west"]["x!"]
    assert found["south"]["x!"] != found["east"]["x!"]


# Labeled intersection


def mutated(seed: int) -> Change:
    source = random.Random(seed)

    def change(message: Any) -> None:
        at = source.randrange(len(message.polynomials))
        raw = bytearray(message.polynomials[at])
        match source.randrange(5):
            case 0:
                raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
            case 1:
                del raw[source.randrange(len(raw)) :]
            case 2:
                raw[:8] = b"\xff" * 8
            case 3:
                raw = bytearray(len(raw))
            case _:
                del message.polynomials[at]
                return
        message.polynomials[at] = bytes(raw)

    return change


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("liar", "kind"), [("north", "psi.PsiQuery"), ("east", "psi.PsiAnswer")])
def test_mutated_polynomials_are_never_a_wrong_identifier(
    federation: Federation, liar: str, kind: str, seed: int
) -> None:
    """A changed query or answer is an error of one of the two."""
    change = mutated(seed)
    error = error_of(federation, liar, kind, change, to="east" if liar == "north" else "north", **VARIANTS["apsi"])
    assert isinstance(error, BadMessage)
    assert "east" in str(error) or "north" in str(error)


@pytest.mark.parametrize("seed", [b"", b"\0" * 1000, None], ids=["none", "long", "another"])
def test_another_hash_seed_is_an_error_or_finds_nothing_wrong(federation: Federation, seed: bytes | None) -> None:
    """A holder that says another way to hash than it uses: no wrong identifier comes of it."""
    change = field_of("hash_seed", lambda raw: flipped(raw) if seed is None else seed)
    try:
        results = run_with(federation, "east", "psi.PsiOffer", change, to="north", **VARIANTS["apsi"])
    except BaseException as caught:  # noqa: BLE001 - whatever the group holds is looked at
        error = first_error(caught)
        assert isinstance(error, BadMessage), repr(error)
        assert "east" in str(error)
    else:
        assert_one_layout(results)
        found = held(results, 0)
        common = {text: n for site in ("east", "south", "west") for text, n in found[site].items()}
        assert all(n == common.get(t) or n not in common.values() for t, n in found["north"].items())


# Replays and damage


def test_a_message_of_another_run_is_refused(federation: Federation) -> None:
    """Same sites, same certificates, same job: what was sealed in the first run is not for the second."""
    anyio.run(federation.run, job(SITES, COLUMNS), TABLES)
    before = federation.mailbox.slots
    federation.mailbox = MemoryMailbox()
    for name in SITES:
        federation.members[name].journal = MemoryJournal()

    for kind in ("match.EvaluatedItems", "GroupKey"):
        federation.mailbox = MemoryMailbox()
        for name in SITES:
            federation.members[name].journal = MemoryJournal()

        def replayed(slot: Slot, payload: bytes, kind: str = kind) -> bytes:
            return before[slot] if slot.kind == kind else payload

        with pytest.raises(BaseException) as caught:
            anyio.run(all_roles, federation, {}, {"north": Lying(federation.mailbox, shown=replayed)}, TABLES)
        error = first_error(caught.value)
        assert isinstance(error, Disagreement)
        assert f"The signature of east on {kind}" in str(error)


def test_replayed_tokens_end_in_an_error_or_share_nothing(federation: Federation) -> None:
    """A site that sends the tokens of an earlier run, under another key, shares no value with anyone."""
    anyio.run(federation.run, job(SITES, COLUMNS), TABLES)
    before = federation.mailbox.slots[Slot("job-1/0", "match.Tokens", "south", HUB)]
    federation.mailbox = MemoryMailbox()
    for name in SITES:
        federation.members[name].journal = MemoryJournal()
    results = run_with(federation, "south", "match.Tokens", lambda _: wire.Tokens.FromString(before))
    assert_one_layout(results)
    found = held(results, 0)
    assert found["east"]["x!"] == found["north"]["x!"] == found["west"]["x!"] != found["south"]["x!"]


DAMAGED = {
    "oprf": [
        "bounds.1.Answers", "match.TokenPositions", "match.EvaluatedItems", "in-use.HiddenCounts", "GroupKey",
        "Confirmations",
    ],
    "apsi": ["psi.PsiOffer", "psi.PsiAnswer", "ring.RingOffsets", "ring.RingTotals"],
    "otmppsi-3": ["psi.EvaluatedItems", "psi.Hits", "psi.ClassIdentifiers"],
}  # fmt: skip


@pytest.mark.parametrize(("variant", "kind"), [(variant, kind) for variant, kinds in DAMAGED.items() for kind in kinds])
@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"\xff" * 40, lambda b: b""], ids=["cut", "noise", "empty"]
)
def test_damaged_messages_are_typed_errors(
    federation: Federation, variant: str, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    """Whatever the coordinator passes on to north."""

    def damaged(slot: Slot, payload: bytes) -> bytes:
        return damage(payload) if slot.kind == kind and slot.receiver in ("north", ALL) else payload

    mailboxes = {"north": Lying(federation.mailbox, shown=damaged)}
    with pytest.raises(BaseException) as caught:
        anyio.run(all_roles, federation, VARIANTS[variant], mailboxes, TABLES)
    assert isinstance(first_error(caught.value), (BadMessage, Disagreement)), repr(first_error(caught.value))


# A job that extends another


def remembering(old: Mapping[str, Any], **changed: tuple[int, ...]) -> dict[str, CategoryTable]:
    """Tables whose sites remember a job; some with other identifiers than they had."""
    tables = {}
    for site in SITES:
        fitted = old[site]
        if site in changed:
            (dictionary,) = fitted.dictionaries
            fitted = replace(fitted, dictionaries=(replace(dictionary, identifiers=changed[site]),))
        tables[site] = CategoryTable(TABLES[site].cells, {"first": fitted})
    return tables


def test_old_identifiers_that_contradict_each_other_are_refused(federation: Federation, tmp_path: Path) -> None:
    """A site whose memory has another identifier for a common value is noticed, whoever it is."""
    old = run(tmp_path / "old", TABLES, COLUMNS)
    numbers = old["south"].dictionaries[0].identifiers
    tables = remembering(old, south=(numbers[1], numbers[0]))
    with pytest.raises(BaseException) as caught:
        anyio.run(all_roles, federation, {"extends": "first"}, {}, tables)
    error = first_error(caught.value)
    assert isinstance(error, BadMessage)
    assert "old identifier" in str(error)


@pytest.mark.parametrize("identifier", [1000, 0])
def test_an_old_identifier_that_was_never_given_out_or_twice_is_refused(
    federation: Federation, tmp_path: Path, identifier: int
) -> None:
    """Not below the old size, or another value's."""
    old = run(tmp_path / "old", TABLES, COLUMNS)
    (dictionary,) = old["south"].dictionaries
    values = list(dictionary.values)
    numbers = list(dictionary.identifiers)
    taken = [n for site in ("east", "north", "west") for n in old[site].dictionaries[0].identifiers]
    numbers[values.index("s!")] = identifier or next(n for n in taken if n not in numbers)
    with pytest.raises(BaseException) as caught:
        anyio.run(all_roles, federation, {"extends": "first"}, {}, remembering(old, south=tuple(numbers)))
    error = first_error(caught.value)
    assert isinstance(error, BadMessage)
    assert "old identifier" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.known.pop(),
        lambda m: setattr(m.known[1], "present", False),
        lambda m: setattr(m.known[1], "layout", b""),
    ],
    ids=["one missing", "north was not there", "another layout"],
)
def test_a_coordinator_that_speaks_for_a_site_is_noticed(
    federation: Federation, tmp_path: Path, change: Change
) -> None:
    """North sees that its word is another one."""
    old = run(tmp_path / "old", TABLES, COLUMNS)
    error = error_of(
        federation, HUB, "KnownByAll", change, shown_to="north", tables=remembering(old),
        extends="first",
    )  # fmt: skip
    assert isinstance(error, Disagreement)
    assert "other words on job first" in str(error)


# Sums of texts and targets


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ({"transform": "bytes-norm"}, "moments.HiddenIntegers"),
        ({"transform": "target", "target": "y"}, "target.HiddenVector"),
    ],
    ids=["bytes-norm", "target"],
)
def test_different_sums_are_a_disagreement(federation: Federation, step: dict[str, Any], kind: str) -> None:
    """Before anything is encoded with them."""

    def other(message: Any) -> None:
        part = message if isinstance(message, wire.HiddenIntegers) else message.vector
        part.elements = flipped(part.elements)

    error = error_of(federation, HUB, kind, other, shown_to="north", **step)
    assert isinstance(error, Disagreement)
    assert "was shown another value" in str(error)


def test_a_forged_length_gets_no_sums(federation: Federation) -> None:
    """A coordinator that says texts are shorter than they are would have sums run over."""
    tables = {**TABLES, "north": CategoryTable({"a": ["n" * 200]})}
    nobody = field_of("bits", lambda bits: bytes(len(bits)))
    error = error_of(federation, HUB, "length.1.Answers", nobody, tables=tables, transform="bytes-norm")
    assert isinstance(error, BadMessage)
    assert "below what north holds" in str(error)


def test_honest_roles_are_right_in_this_harness(federation: Federation) -> None:
    """The lies above are what the errors come from."""
    results = run_with(federation, "north", "match.Tokens", lambda m: None)
    assert_equals_pooled(results, TABLES, COLUMNS)
