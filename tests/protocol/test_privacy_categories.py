"""What the coordinator and the sites see of categorical values: recorded from real jobs, and attacked.

Every attack is run a second time with the secret that it lacks, and succeeds: a leak would have been found.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.categories import text_integer
from commonscale.channel.seal import Envelope
from commonscale.channel.slot import ALL, COORDINATOR, Slot
from commonscale.channel.transcript import Transcript
from commonscale.protocols.psi.items import item
from commonscale.v1 import protocols_pb2 as wire
from crypto import checks, field61, fixed_point, masks, oprf, overthreshold
from crypto.rings import FIELD61, Z256, Vector, Wide
from tests.categories import METHODS, SITES, job
from tests.federation import JOB, CategorySource, Federation

COLUMN = "diagnosis"
FIRST, LAST = SITES[0], SITES[-1]
# Two values of all sites, one of three, some of two, one of each site alone; among the last site's, one that only the
# first has too.
VALUES: dict[str, list[str]] = {
    "east": [
        "Glioblastoma, IDH-wildtype",
        "Zyklothymie 7731",
        "myotonic dystrophy",
        "kuru (east & west)",
        "only east!",
    ],
    "north": [
        "Glioblastoma, IDH-wildtype",
        "Zyklothymie 7731",
        "myotonic dystrophy",
        "Kawasaki-Syndröm",
        "only north!",
    ],
    "south": [
        "Glioblastoma, IDH-wildtype",
        "Zyklothymie 7731",
        "myotonic dystrophy",
        "Kawasaki-Syndröm",
        "only south!",
    ],
    "west": ["Glioblastoma, IDH-wildtype", "Zyklothymie 7731", "kuru (east & west)", "only west!"],
}
DICTIONARY = sorted({value for values in VALUES.values() for value in values})
STEPS: dict[str, dict[str, Any]] = {
    **METHODS,
    "ring": {"method": "ring"},
    "oprf-counts": {"method": "oprf", "min_frequency": 3},
    "target": {"transform": "target", "target": "y"},
    "bytes-norm": {"transform": "bytes-norm"},
    "mod-norm": {"transform": "mod-norm"},
    "rolling-hash": {"transform": "rolling-hash"},
}
THRESHOLDS = {"otmppsi-2-general": 2, "otmppsi-3": 3, "otmppsi-n": 4}
IDENTIFIERS = [*METHODS, "ring", "oprf-counts", "target"]


@dataclass
class Recording:
    """Every message of a job, what each site could read of the sealed ones, and what each keeps to itself."""

    federation: Federation
    results: Mapping[str, Any]
    opened: dict[Slot, bytes] = field(default_factory=dict)

    @property
    def messages(self) -> dict[Slot, bytes]:
        return self.federation.mailbox.slots

    def of_step(self, kind: str) -> dict[Slot, bytes]:
        return {slot: payload for slot, payload in self.messages.items() if slot.kind == kind and slot.run != JOB}

    def site_view(self, site: str) -> bytes:
        """What a site has received, opened."""
        to_it = (ALL, site)
        told = [body for slot, body in self.messages.items() if slot.sender == COORDINATOR and slot.receiver in to_it]
        return b"\0".join([*told, *(body for slot, body in self.opened.items() if slot.receiver == site)])

    def kept(self, site: str, name: str) -> bytes:
        return self.federation.members[site].journal.kept[Slot(f"{JOB}/0", name, site, site)]

    def sealed_to(self, site: str, kind: str) -> dict[str, bytes]:
        return {s.sender: body for s, body in self.opened.items() if (s.receiver, s.kind) == (site, kind)}


def record(directory: Path, name: str, values: Mapping[str, Sequence[str]] = VALUES, **more: Any) -> Recording:
    tables = {
        site: CategorySource({COLUMN: list(cells), "y": [1.0, 0.0] * (len(cells) // 2) + [1.0] * (len(cells) % 2)})
        for site, cells in values.items()
    }
    federation, opened, honest = Federation(directory, list(values)), {}, Envelope.open

    def open_and_note(self: Envelope, slot: Slot, payload: bytes) -> bytes:
        opened[slot] = honest(self, slot, payload)
        return opened[slot]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Envelope, "open", open_and_note)
        results = anyio.run(federation.run, job(list(values), [COLUMN], **STEPS[name], **more), tables)
    return Recording(federation, results, opened)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    """One job of each kind."""
    return {name: record(tmp_path_factory.mktemp("f"), name) for name in STEPS}


def coordinators_view(recording: Recording) -> bytes:
    """All that passed the mailbox: sealed messages as they were sealed."""
    return b"\0".join(recording.messages.values())


def digests(raw: bytes) -> Iterator[bytes]:
    for name in ("sha256", "sha512", "sha1", "md5", "blake2b", "blake2s", "sha3_256"):
        yield hashlib.new(name, raw).digest()


def forms(value: str) -> set[bytes]:
    """The ways in which a value could stand in a message: as text, as the protocol's item, or hashed without a key."""
    texts = [value.encode(), value.encode("utf-16-le"), value.encode("utf-16-be"), item(COLUMN, value)]
    texts.append(text_integer(value).to_bytes(len(value.encode()), "little"))
    joined = [
        COLUMN.encode() + value.encode(),
        COLUMN.encode() + b"=" + value.encode(),
        COLUMN.encode() + b"\0" + value.encode(),
    ]
    raw = {*texts, *(digest for text in (*texts, *joined) for digest in digests(text))}
    spelt = {spelling for text in raw for spelling in (text.hex().encode(), text.hex().upper().encode())}
    spelt |= {base64.b64encode(text).rstrip(b"=")[:-1] for text in raw}
    return raw | spelt


def points(values: Iterable[str]) -> set[bytes]:
    """What a value is mapped to before it is blinded."""
    return {oprf.map_to_point(item(COLUMN, value)) for value in values}


def tokens(key: bytes, values: Iterable[str], threshold: int = 0) -> set[bytes]:
    """Tokens under a key, the points they are hashes of, and what over-threshold intersection makes of them."""
    items = [item(COLUMN, value) for value in values]
    found = oprf.tokens(key, items)
    made = {*found, *oprf.evaluate(key, map(oprf.map_to_point, items)), *map(overthreshold.place_key, found)}
    for x in range(1, len(SITES) + 1) if threshold else ():
        made |= set(cells(overthreshold.gen_shares(found, x, threshold)))
    return made


def cells(shares: np.ndarray) -> list[bytes]:
    """As they stand in a message."""
    raw = overthreshold.to_bytes(shares)
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]


def windows(needles: Iterable[bytes], view: bytes) -> list[bytes]:
    """Needles of which any sixteen bytes that begin at a multiple of sixteen stand in the view."""
    return [n for n in needles if any(n[at : at + 16] in view for at in range(0, max(len(n) - 15, 1), 16))]


# (a) and (b): the coordinator


@pytest.mark.parametrize("name", STEPS)
def test_no_value_can_be_read_from_any_message(recordings: dict[str, Recording], name: str) -> None:
    """Not as text, not encoded, not hashed without a key, in nothing that passed the coordinator."""
    view = coordinators_view(recordings[name])
    for value in DICTIONARY:
        assert not [form for form in forms(value) if form in view]


def test_the_same_search_finds_the_names_of_columns(recordings: dict[str, Recording]) -> None:
    """They are public, and stand in the messages as text."""
    assert COLUMN.encode() in coordinators_view(recordings["oprf"])
    assert any(form in b"..." + hashlib.sha256(b"only west!").digest() for form in forms("only west!"))


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_guessing_with_the_whole_dictionary_finds_nothing(recordings: dict[str, Recording], name: str) -> None:
    """Hashes of every candidate, its point, and its tokens under a key of zeros: none is in its view."""
    view = coordinators_view(recordings[name])
    hashed = {form for value in DICTIONARY for form in forms(value)}
    assert not windows(hashed | points(DICTIONARY) | tokens(bytes(32), DICTIONARY, THRESHOLDS.get(name, 0)), view)


def seen_keys(recording: Recording) -> set[bytes]:
    """Every 32 bytes in a row of the step's messages that the coordinator can read; of sealed ones their beginning."""
    found = set()
    for slot, payload in recording.messages.items():
        if slot.run != JOB:
            readable = payload if COORDINATOR in (slot.sender, slot.receiver) else payload[:200]
            found |= {readable[at : at + 32] for at in range(len(readable) - 31)}
    return found


@pytest.mark.parametrize("name", ["oprf", "otmppsi-3"])
def test_no_bytes_in_the_view_are_the_key(tmp_path: Path, name: str) -> None:
    """A token under every 32 bytes seen as the key is no token that was sent; under the real key it is."""
    small = {site: ["Zyklothymie 7731"] for site in SITES}
    recording = record(tmp_path, name, small, max_categories=1)
    view, text = coordinators_view(recording), item(COLUMN, "Zyklothymie 7731")

    def stands_there(key: bytes) -> bool:
        (token,) = oprf.tokens(key, [text])
        return token[:16] in view or overthreshold.place_key(token) in view

    keys = seen_keys(recording)
    assert len(keys) > 1000
    assert not [key for key in keys if stands_there(key)]
    assert stands_there(recording.kept(FIRST, "match.OprfKey" if name == "oprf" else "psi.hits.OprfKey"))


def test_with_the_keyholders_key_the_coordinator_would_find_every_value(recordings: dict[str, Recording]) -> None:
    """The attack works, and the key is what it lacks; so the keyholder is a site, and its key is never sent."""
    recording = recordings["oprf"]
    key = recording.kept(FIRST, "match.OprfKey")
    view = coordinators_view(recording)
    assert key not in view
    for value in DICTIONARY:
        (token,) = oprf.tokens(key, [item(COLUMN, value)])
        assert token[:16] in view


@pytest.mark.parametrize("name", ["apsi", "apsi-both", "otmppsi-2", "otmppsi-2-general"])
def test_not_even_the_keys_help_where_tokens_are_sealed(recordings: dict[str, Recording], name: str) -> None:
    """With the secrets of all keyholders, nothing in the coordinator's view is a token of any value."""
    recording = recordings[name]
    kept = [k for member in recording.federation.members.values() for k in member.journal.kept.items()]
    keys = [secret for slot, secret in kept if slot.kind.startswith("psi.") and ".OprfKey" in slot.kind]
    assert len(keys) == {"apsi": 6, "apsi-both": 12}.get(name, 1)
    view = coordinators_view(recording)
    assert not [key for key in keys if windows(tokens(key, DICTIONARY, THRESHOLDS.get(name, 0)), view)]


def test_the_coordinator_makes_the_last_sites_shares_and_can_name_none(recordings: dict[str, Recording]) -> None:
    """With t = 3 it computes tokens of the last site's values; the real key would name them, its own view does not."""
    recording = recordings["otmppsi-3"]
    evaluated = recording.messages[Slot(f"{JOB}/0", "psi.tokens.EvaluatedItems", FIRST, COORDINATOR)]
    unblinding = recording.messages[Slot(f"{JOB}/0", "psi.tokens.Unblinding", LAST, COORDINATOR)]
    pieces = [wire.EvaluatedItems.FromString(evaluated).points, wire.Unblinding.FromString(unblinding).scalars]
    both = zip(*([raw[at : at + 32] for at in range(0, len(raw), 32)] for raw in pieces), strict=True)
    seen = {oprf.finalize(scalar, point) for point, scalar in both}
    items = [item(COLUMN, value) for value in DICTIONARY]
    assert seen.isdisjoint(oprf.tokens(bytes(32), items))
    named = seen & set(oprf.tokens(recording.kept(FIRST, "psi.hits.OprfKey"), items))
    assert len(named) == len(VALUES[LAST])
    assert len(seen) == 16, "dummies up to the bound"


@pytest.mark.parametrize("name", ["apsi", "apsi-both", "otmppsi-2", "otmppsi-2-general", "otmppsi-3", "otmppsi-n"])
def test_what_the_coordinator_may_read_is_of_known_kinds(recordings: dict[str, Recording], name: str) -> None:
    """Bounds, masked sums and layouts; and what makes the last site's shares, with a threshold above two."""
    messages = recordings[name].messages
    plain = {s.kind for s in messages if s.run != JOB and COORDINATOR in (s.sender, s.receiver)}
    relayed = {f"psi.tokens.{kind}" for kind in ("EvaluatedItems", "Unblinding", "OwnShares")}
    assert plain == (relayed if name in ("otmppsi-3", "otmppsi-n") else set()) | {
        "bounds.1.MaskedVector", "bounds.1.Answers", "in-use.MaskedVector", "in-use.HiddenTotal", "layout.Layout",
        "layout.Confirmations",
    }  # fmt: skip


def test_what_the_coordinator_learns_from_tokens_is_how_many_values_groups_share(tmp_path: Path) -> None:
    """Equal tokens are exactly the values that two or more sites share; all others look like dummies."""
    recording = record(tmp_path, "oprf")
    holders: dict[bytes, set[str]] = {}
    for slot, payload in recording.of_step("match.Tokens").items():
        raw = wire.Tokens.FromString(payload).tokens
        found = [raw[at : at + 16] for at in range(0, len(raw), 16)]
        assert len(found) == 16
        assert found == sorted(found), "their order says nothing"
        for token in found:
            holders.setdefault(token, set()).add(slot.sender)
    seen = Counter(frozenset(sites) for sites in holders.values() if len(sites) > 1)
    truth = Counter(frozenset(s for s in SITES if value in VALUES[s]) for value in DICTIONARY)
    assert seen == Counter({sites: count for sites, count in truth.items() if len(sites) > 1})


# (c): the sites


@pytest.mark.parametrize("name", [name for name in STEPS if name != "bytes-norm"])
def test_a_site_reads_no_value_that_it_does_not_hold(recordings: dict[str, Recording], name: str) -> None:
    """In no message that it was sent, sealed or not, in no form; nor is one in what it ends with."""
    recording = recordings[name]
    for site in SITES:
        view = recording.site_view(site) + repr(recording.results[site].estimator().__dict__).encode()
        foreign = [value for value in DICTIONARY if value not in VALUES[site]]
        assert not [form for value in foreign for form in forms(value) if form in view]


def test_bytes_norm_shows_the_beginning_of_the_longest_text(tmp_path: Path) -> None:
    """As it warns: every site reads the pooled sum, and that begins with the letters of a text it does not hold."""
    recording = record(tmp_path, "bytes-norm", {**VALUES, "west": ["Creutzfeldt-Jakob disease, sporadic"]})
    count = sum(map(len, VALUES.values())) - len(VALUES["west"]) + 1
    (moments,) = recording.results["east"].fitted
    total = int(moments.mean * count)
    assert total.to_bytes((total.bit_length() + 7) // 8, "big").startswith(b"Creutzf")


@pytest.mark.parametrize("name", ["oprf", "apsi", "apsi-both", "otmppsi-2", "otmppsi-3", "otmppsi-n"])
def test_a_keyholder_finds_no_tokens_to_try_its_key_on(recordings: dict[str, Recording], name: str) -> None:
    """Whoever can compute the token of any value sees blinded points only."""
    recording = recordings[name]
    for site in SITES[:-1] if name.startswith("apsi") else SITES[:1]:
        kept = recording.federation.members[site].journal.kept
        keys = [secret for slot, secret in kept.items() if "OprfKey" in slot.kind]
        assert keys
        view = recording.site_view(site)
        candidates = points(DICTIONARY).union(*(tokens(key, DICTIONARY, THRESHOLDS.get(name, 0)) for key in keys))
        assert not windows(candidates, view)


def test_the_last_site_has_tokens_but_no_key_with_threshold_two(recordings: dict[str, Recording]) -> None:
    """It compares what it cannot name: with the first site's key, and only with it, the tokens are values."""
    recording = recordings["otmppsi-2"]
    sent = recording.sealed_to(LAST, "psi.hits.Tokens")
    assert set(sent) == set(SITES[:-1])
    view = recording.site_view(LAST)
    foreign = [value for value in DICTIONARY if value not in VALUES[LAST]]
    guessed = {form for value in foreign for form in forms(value)} | points(foreign) | tokens(bytes(32), foreign)
    assert not windows(guessed, view)
    key = recording.kept(FIRST, "psi.hits.OprfKey")
    assert all(oprf.tokens(key, [item(COLUMN, value)])[0][:16] in view for value in foreign)


def tables_at_the_last_site(recording: Recording) -> dict[int, np.ndarray]:
    """Of the other sites, by their place in the ring."""
    found = {}
    for site, body in recording.sealed_to(LAST, "psi.hits.ShareTables").items():
        raw = wire.ShareTables.FromString(body).shares
        found[SITES.index(site)] = overthreshold.from_bytes(raw, len(raw) // overthreshold.SHARE_BYTES)
    return found


def test_shares_do_not_stand_out_in_a_table(recordings: dict[str, Recording]) -> None:
    """No share comes twice, in a site's tables or in two sites': nothing tells a share from the numbers around it."""
    tables = tables_at_the_last_site(recordings["otmppsi-3"])
    assert set(tables) == {0, 1, 2}
    everything = [cell for table in tables.values() for cell in cells(table)]
    assert len(set(everything)) == len(everything) == 3 * overthreshold.TABLES * 3 * 16


def scaled(shares: np.ndarray, factor: int) -> np.ndarray:
    return field61.multiply(shares, np.full_like(shares, np.uint64(factor % field61.PRIME)))


def test_the_last_site_cannot_find_its_own_values_below_the_threshold(recordings: dict[str, Recording]) -> None:
    """With t = 3 and a value that the first and the last site hold, its own shares show the last none of the first's.

    With the token, which it never gets, it would: in the cells where they must be.
    """
    recording = recordings["otmppsi-3"]
    (payload,) = recording.of_step("psi.tokens.OwnShares").values()
    own = wire.OwnShares.FromString(payload)
    places = [own.places[at : at + 32] for at in range(0, len(own.places), 32)]
    shares = overthreshold.from_bytes(own.shares, len(own.shares) // 16).reshape(16, overthreshold.TABLES, 2)
    first = tables_at_the_last_site(recording)[0]
    there, x_first, x_last = set(cells(first)), 1, len(SITES)
    ratio = x_first * field61.inverse(x_last)
    guesses = [shares, *(scaled(shares, ratio**power) for power in (-2, -1, 1, 2))]
    guesses += [overthreshold.gen_shares(places, x_first, t) for t in (2, 3)]
    assert not [cell for guess in guesses for cell in cells(guess) if cell in there]

    key = recording.kept(FIRST, "psi.hits.OprfKey")
    (token,) = oprf.tokens(key, [item(COLUMN, "kuru (east & west)")])
    assert overthreshold.place_key(token) in places, "it knows where the shares would be"
    mine = overthreshold.occupants([overthreshold.place_key(token)], overthreshold.Shape(3, 16)).ravel()
    where = np.flatnonzero(mine != overthreshold.EMPTY)
    expected = overthreshold.gen_shares([token], x_first, 3)[0]
    found = [(first[cell] == expected[table]).all() for table, cell in enumerate(where)]
    assert np.mean(found) > 0.5


def test_only_values_of_three_sites_are_hits(recordings: dict[str, Recording]) -> None:
    """All that the last site's tables give by trying every three sites on every cell is who holds the three values."""
    tables = tables_at_the_last_site(recordings["otmppsi-3"])
    own = recordings["otmppsi-3"].kept(LAST, "psi.hits.OwnTables")
    tables[3] = overthreshold.from_bytes(own, len(own) // 16)
    hits = overthreshold.reconstruct(tables, 3)
    assert all(len(hit.members) >= 3 for hit in hits)
    # "Kawasaki" and "kuru" are held by two each; with anyone's random numbers they are no hit.
    in_table = Counter(hit.cell // (3 * 16) for hit in hits)
    assert set(in_table) == set(range(overthreshold.TABLES))
    assert max(in_table.values()) == 3


# (d) and (e): sizes, and two runs


def sizes(recording: Recording) -> dict[tuple[str, str, str], int]:
    """Of everything in the step, signatures (whose length varies by chance) left aside."""
    found = {}
    for slot, payload in recording.messages.items():
        if slot.run == JOB or slot.kind.endswith(("Confirmation", "Confirmations")):
            continue
        sealed = COORDINATOR not in (slot.sender, slot.receiver)
        size = len(wire.Signed.FromString(payload).body) if sealed else len(payload)
        if slot.kind == "layout.Layout":
            message = wire.Layout.FromString(payload)
            message.ClearField("confirmation")
            size = message.ByteSize()
        found[slot.kind, slot.sender, slot.receiver] = size
    return found


@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("bytes-norm", "ring")])
def test_sizes_say_nothing_of_how_many_values_there_are(tmp_path: Path, name: str) -> None:
    """One value a site or sixteen, the same at all sites or not: messages are as long as the bound says."""
    few = {site: ["x"] for site in SITES}
    many = {site: [f"v{i}" for i in range(at, at + 13 + at)] for at, site in enumerate(SITES)}
    one, other = (sizes(record(tmp_path / str(at), name, v)) for at, v in enumerate((few, many)))
    # What is as long as there are identifiers, which is public.
    excepted = ("target.MaskedVector", "target.HiddenTotal")
    assert set(one) == set(other)
    assert {k: v for k, v in one.items() if k[0] not in excepted} == {
        k: v for k, v in other.items() if k[0] not in excepted
    }


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_two_runs_of_one_job_have_nothing_in_common(
    recordings: dict[str, Recording], tmp_path: Path, name: str
) -> None:
    """Neither tokens nor positions, nor any sixteen bytes of shares, points, sums or layouts."""
    bulk = (
        "Tokens",
        "Positions",
        "Items",
        "Tables",
        "Shares",
        "Unblinding",
        "Masked",
        "Hidden",
        "Query",
        "Answer",
        "Offer",
    )

    def pieces(recording: Recording) -> set[bytes]:
        found = set()
        for slot, payload in [*recording.messages.items(), *recording.opened.items()]:
            if slot.run != JOB and any(word in slot.kind for word in bulk) and not slot.kind.endswith(".Answers"):
                # From the end, where the bytes of the last field are; a length stands at the beginning.
                found |= {payload[at - 16 : at] for at in range(len(payload), 24, -16)}
        return found

    first, second = pieces(recordings[name]), pieces(record(tmp_path, name))
    if name != "ring":
        assert len(first) > 20
    assert first.isdisjoint(second)


def test_positions_of_two_runs_are_unrelated(tmp_path: Path) -> None:
    """What a site is told about its tokens differs, and so does the order of the identifiers."""
    runs = [record(tmp_path / str(at), "oprf") for at in range(3)]
    told = [r.messages[Slot(f"{JOB}/0", "match.TokenPositions", COORDINATOR, "east")] for r in runs]
    assert len(set(told)) == 3
    orders = {tuple(r.results["east"].dictionaries[0].identifiers) for r in runs}
    assert len(orders) > 1
    assert len({r.results[COORDINATOR].digest for r in runs}) == 3


# (f): hidden sums


def elements(payload: bytes, kind: Any) -> Vector:
    raw = kind.FromString(payload).elements
    return FIELD61.from_bytes(raw, len(raw) // FIELD61.element_bytes)


def announced_before(recording: Recording, kind: str) -> bytes:
    """The transcript before a sum: what was announced in the rounds that come before it, in their order."""
    transcript = Transcript()
    for slot, payload in recording.messages.items():
        if slot.run != JOB and slot.sender == COORDINATOR and slot.receiver == ALL:
            if slot.kind == kind:
                break
            name = slot.kind.rpartition(".")[2]
            message = getattr(wire, name).FromString(payload)
            if name in ("Answers", "HiddenTotal", "Total"):
                transcript.add(message.bits if name == "Answers" else message.elements)
    return transcript.digest


def context_of(recording: Recording, scope: str) -> bytes:
    """What the masks of a hidden sum are bound to."""
    slot = Slot(f"{JOB}/0", f"{scope}.MaskedVector", "", COORDINATOR)
    return slot.context() + announced_before(recording, f"{scope}.HiddenTotal")


@pytest.mark.parametrize("name", ["oprf", "oprf-counts", "apsi", "otmppsi-3"])
def test_the_coordinator_adds_up_what_only_the_sites_can_read(tmp_path: Path, name: str) -> None:
    """The sum that passes it looks uniform; without the group's mask, which it lacks, it says what is in use."""
    recording = record(tmp_path, name, max_categories=64)
    masked = [elements(payload, wire.MaskedVector) for payload in recording.of_step("in-use.MaskedVector").values()]
    (hidden,) = (elements(payload, wire.HiddenTotal) for payload in recording.of_step("in-use.HiddenTotal").values())
    np.testing.assert_array_equal(FIELD61.add_all(masked), hidden)
    for vector in (*masked, hidden):
        assert len(vector) >= 4 * 64
        assert vector.min() > 1 << 32, "no small number, no zero"
        assert len(np.unique(vector)) == len(vector)
        np.testing.assert_allclose((vector / field61.PRIME).mean(), 0.5, atol=0.1)
    key, context = recording.kept(FIRST, "OwnGroupKey"), context_of(recording, "in-use")
    opened = masks.remove(FIELD61, hidden, key, context)
    opened, check = opened[:-1], opened[-1:]
    np.testing.assert_array_equal(checks.linear(opened, key, context), check)
    assert np.count_nonzero(opened) == recording.results[COORDINATOR].sizes[0]
    if name == "oprf-counts":
        truth = Counter(value for values in VALUES.values() for value in values)
        assert sorted(opened[opened != 0].tolist()) == sorted(truth.values())
    else:
        assert opened[opened != 0].min() > 1 << 32, "not even the number of holders"
    guess = masks.remove(FIELD61, hidden, bytes(32), context)
    assert np.count_nonzero(guess) == len(guess)


def test_the_group_key_is_in_no_message(recordings: dict[str, Recording]) -> None:
    """It is sealed to every site; under it lies the only hash of the layout."""
    for name in IDENTIFIERS:
        key = recordings[name].kept(FIRST, "OwnGroupKey")
        assert key not in coordinators_view(recordings[name])
        assert all(key in recordings[name].site_view(site) for site in SITES[1:])


def test_sums_of_texts_and_targets_are_hidden_too(recordings: dict[str, Recording]) -> None:
    """Pooled sums are in the coordinator's view only under the group's mask."""
    recording = recordings["bytes-norm"]
    (payload,) = recording.of_step("moments.HiddenTotal").values()
    hidden = wire.HiddenTotal.FromString(payload).elements
    width, key = len(hidden) // 3, recording.kept(FIRST, "OwnGroupKey")
    wide = Wide(width)
    unmasked = masks.remove(wide, wide.from_bytes(hidden, 3), key, context_of(recording, "moments"))
    opened = wide.to_integers(unmasked)
    numbers = [text_integer(value) for values in VALUES.values() for value in values]
    assert opened == [len(numbers), sum(numbers), sum(x * x for x in numbers)]
    assert not any(number.to_bytes(width, "little")[:16] in coordinators_view(recording) for number in opened[1:])
    recording = recordings["target"]
    (payload,) = recording.of_step("target.HiddenTotal").values()
    raw = wire.HiddenTotal.FromString(payload).elements
    vector = Z256.from_bytes(raw, len(raw) // Z256.element_bytes)
    assert all(abs(float(number)) > 1e20 for number in fixed_point.decode(vector))
    key, context = recording.kept(FIRST, "OwnGroupKey"), context_of(recording, "target")
    found = fixed_point.decode(masks.remove(Z256, vector, key, context))
    assert sum(found[0::2]) == sum(map(len, VALUES.values()))


def test_no_value_is_in_a_repr(recordings: dict[str, Recording]) -> None:
    """What a role ends with shows no value when it is logged by mistake."""
    for recording in recordings.values():
        for fitted in recording.results.values():
            assert not [value for value in DICTIONARY if value in repr(fitted)]
    for site in SITES:
        (moments,) = recordings["bytes-norm"].results[site].fitted
        assert str(moments.mean.numerator) not in repr(moments), "which begins with letters"
