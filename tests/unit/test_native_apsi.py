"""The package apsi in its child process: refused where it cannot run, and harmless where it fails.

Real cryptography of the package runs only where the CPU allows it. Elsewhere frames, roles and errors are shown with a
stand-in of the same interface, which hides nothing.
"""

import sys
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import pytest

from commonscale import disclosure
from commonscale.channel.channel import Channel, Event, Observer
from commonscale.channel.mailbox import MemoryMailbox
from commonscale.channel.slot import Slot
from commonscale.errors import BadMessage, ConfigError, Refused, SiteFailed, StateLost, TooManyCategories
from commonscale.pipeline import Pipeline
from commonscale.protocols.psi import labeled, labeled_native
from commonscale.v1.protocols_pb2 import NativeMessage
from crypto import native_apsi
from crypto.native_apsi import child, gate, process
from participant import policy
from tests.categories import assert_equals_pooled, run
from tests.federation import CategorySource, MemoryJournal

ALL_FLAGS = "flags\t\t: fpu sse2 avx2 avx512f avx512dq avx512cd avx512bw avx512vl\n"
ITEMS = [b"\x00\x00\x00\x01a=x", b"\x00\x00\x00\x01a=y", b"\x00\x00\x00\x01amissing"]

# The interface of apsi 0.1.2: a digest for blinding, a keyed one for the OPRF, labels in the clear.
STAND_IN = """
import hashlib, hmac, json, os
print("noise on the standard output", flush=True)

def pieces(raw, size):
    if len(raw) % size:
        raise RuntimeError("malformed: " + raw.hex())
    return [raw[at : at + size] for at in range(0, len(raw), size)]

class LabeledServer:
    def init_db(self, params_json, max_label_length, nonce_byte_count):
        json.loads(params_json)
        self.longest, self.key, self.table = max_label_length, os.urandom(16), {}
    def add_items(self, items_with_label):
        for item, label in items_with_label:
            assert isinstance(item, str) and len(label) == self.longest and label.isascii()
            self.table[self.token(hashlib.sha256(item.encode()).digest())] = label.encode()
    def token(self, blinded):
        return hmac.digest(self.key, blinded, "sha256")
    def handle_oprf_request(self, request):
        return b"".join(map(self.token, pieces(request, 32)))
    def handle_query(self, query):
        return b"".join(self.table.get(token, bytes(self.longest)) for token in pieces(query, 32))

class LabeledClient:
    def __init__(self, params_json):
        json.loads(params_json)
    def oprf_request(self, items):
        self.items = items
        return b"".join(hashlib.sha256(item.encode()).digest() for item in items)
    def build_query(self, oprf_response):
        return b"".join(pieces(oprf_response, 32))
    def extract_result(self, query_response):
        labels = [label.decode().split("\\0", 1)[0] for label in pieces(query_response, 8)]
        return {item: label for item, label in zip(self.items, labels, strict=True) if label}
"""


def script(directory: Path, text: str) -> list[str]:
    path = directory / "fake_child.py"
    path.write_text(text)
    return [sys.executable, str(path)]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real child with the stand-in beside it, on a machine that passes."""
    (tmp_path / "apsi.py").write_text(STAND_IN)
    start = f"import runpy\nrunpy.run_path({child.__file__!r}, run_name='__main__')\n"
    monkeypatch.setattr(process, "COMMAND", script(tmp_path, start))
    monkeypatch.setattr(native_apsi, "available", lambda: None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: gate.VERSION)


def unavailable_here() -> str:
    try:
        native_apsi.available()
    except native_apsi.UnavailableError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("installed")
def test_a_cpu_with_all_flags_passes() -> None:
    """On every processor."""
    native_apsi.available(ALL_FLAGS + "\n" + ALL_FLAGS)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("cpuinfo", "lacks"),
    [
        (ALL_FLAGS.replace(" avx512vl", ""), "lacks avx512vl"),
        (ALL_FLAGS + ALL_FLAGS.replace("avx512bw", ""), "lacks avx512bw"),
        ("flags : fpu avx2 avx512fp16", "lacks avx512bw, avx512cd, avx512dq, avx512f, avx512vl"),
        ("Features : fp asimd", "lacks avx512bw"),
        ("", "lacks avx512bw"),
    ],
)
def test_a_cpu_without_a_flag_does_not(cpuinfo: str, lacks: str) -> None:
    """One sentence names what is missing."""
    with pytest.raises(native_apsi.UnavailableError, match=lacks):
        native_apsi.available(cpuinfo)


def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the CPU."""

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(native_apsi.UnavailableError, match=r"not installed: pip install 'commonscale\[native\]'"):
        native_apsi.available(ALL_FLAGS)


def test_another_release_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages may be others."""
    monkeypatch.setattr(metadata, "version", lambda _: "0.2.0")
    with pytest.raises(native_apsi.UnavailableError, match=r"installed as 0\.2\.0"):
        native_apsi.available(ALL_FLAGS)


READ = "import sys, os, signal, time\nsys.stdin.buffer.read(4)\n"
FAULTS: dict[str, tuple[str, type[Exception], str]] = {
    "dies of SIGILL": (READ + "os.kill(os.getpid(), signal.SIGILL)", process.CrashError, "died .* of SIGILL"),
    "exits": (READ + "sys.exit(7)", process.CrashError, "with exit code 7"),
    "is gone at once": ("", process.CrashError, "apsi process"),
    "hangs": (READ + "time.sleep(60)", process.TimeLimitError, r"within 0\.5 s"),
    "hangs without reading": ("import time\ntime.sleep(60)", process.TimeLimitError, "within"),
    "trickles": (
        READ + "os.write(1, b'\\0\\0\\0\\1\\0\\0\\1\\0')\nwhile True:\n    os.write(1, b'x')\n    time.sleep(0.1)",
        process.TimeLimitError,
        r"within 0\.5 s",
    ),
    "talks garbage": (READ + "print('hello', flush=True)\ntime.sleep(60)", process.BadOutputError, "parts"),
    "promises too much": (
        READ + "os.write(1, b'\\0\\0\\0\\1\\xff\\xff\\xff\\xff')\ntime.sleep(60)",
        process.BadOutputError,
        "bytes",
    ),
    "says neither": (
        READ + "os.write(1, b'\\0\\0\\0\\1\\0\\0\\0\\2hm')\ntime.sleep(60)",
        process.BadOutputError,
        "neither",
    ),
    "gives two results": (
        READ + "os.write(1, b'\\0\\0\\0\\3\\0\\0\\0\\2ok' + b'\\0\\0\\0\\1x' * 2)\ntime.sleep(60)",
        process.BadOutputError,
        "no single result",
    ),
    "closes its output": (READ + "os.close(1)\ntime.sleep(60)", process.CrashError, "stopped talking"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_child_that_misbehaves_is_a_typed_error_in_time(tmp_path: Path, fault: str) -> None:
    """And it does not outlive it."""
    text, kind, words = FAULTS[fault]
    # Faults that show by themselves have time to: Python starts slowly on a busy machine.
    limit_s = 0.5 if kind is process.TimeLimitError else 30
    querier = native_apsi.Querier(script(tmp_path, text), limit_s=limit_s)
    # More than a pipe holds: a child that does not read is noticed at the write.
    items = [number.to_bytes(20_000, "big") for number in range(10)] if "reading" in fault else ITEMS
    began = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        querier.request(items, 10)
    assert isinstance(caught.value, native_apsi.ChildError)
    assert time.monotonic() - began < limit_s + 5
    assert querier._process.poll() is not None
    with pytest.raises(native_apsi.CrashError, match="gone before querier_query"):
        querier.query(b"")


def test_a_program_that_is_not_there_is_a_typed_error() -> None:
    """As a crash is."""
    with pytest.raises(native_apsi.CrashError, match="cannot be started"):
        native_apsi.Holder(["/nowhere/python"])


def test_the_child_does_not_see_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vault's passphrase may stand there."""
    monkeypatch.setenv("COMMONSCALE_PASSPHRASE", "secret")
    reply = """
names = ' '.join(os.environ).encode()
os.write(1, b'\\0\\0\\0\\2\\0\\0\\0\\2ok' + len(names).to_bytes(4, 'big') + names)
time.sleep(60)
"""
    with native_apsi.Holder(script(tmp_path, READ + reply)) as holder:
        assert b"COMMONSCALE" not in holder.query(b"")


@pytest.mark.usefixtures("stand_in")
def test_common_items_have_the_holders_labels() -> None:
    """The whole exchange between two children; what the package prints does not disturb it."""
    with native_apsi.Holder() as holder, native_apsi.Querier() as querier:
        request = querier.request(ITEMS, 20)
        holder.open(ITEMS[1:], [0, native_apsi.LARGEST_LABEL], 20)
        response = holder.query(querier.query(holder.oprf(request, 20)))
        assert querier.extract(response) == [None, 0, native_apsi.LARGEST_LABEL]
        assert len(request) == 20 * 32


@pytest.mark.usefixtures("stand_in")
def test_what_the_package_rejects_is_told_without_its_text() -> None:
    """The text may hold a value; the child is not used again."""
    with native_apsi.Holder() as holder:
        holder.open(ITEMS, [1, 2, 3], 3)
        with pytest.raises(native_apsi.RejectedError, match=r"ended holder_query with RuntimeError\.$"):
            holder.query(b"odd")
        with pytest.raises(native_apsi.CrashError):
            holder.query(b"")


@pytest.mark.usefixtures("stand_in")
def test_a_request_for_more_items_than_agreed_is_rejected() -> None:
    """Before the package sees it."""
    with native_apsi.Holder() as holder:
        holder.open(ITEMS, [1, 2, 3], 3)
        with pytest.raises(native_apsi.RejectedError, match="than the 3 items"):
            holder.oprf(bytes(32 * 64), 3)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("items", "labels", "bound"),
    [(ITEMS, [1, 2, 10**8], 3), (ITEMS, [1, 2, -1], 3), (ITEMS, [1, 2, 3], 2), (ITEMS, [1, 2, 3], 10**6)],
)
def test_what_does_not_fit_is_refused_before_the_child(items: list[bytes], labels: list[int], bound: int) -> None:
    """Labels of more digits, more items than the bound, a bound above the table."""
    with native_apsi.Holder() as holder, pytest.raises(ValueError):
        holder.open(items, labels, bound)


class CrashHere(Observer):
    """Ends a role after one of its operations."""

    def __init__(self, operation: str) -> None:
        self.operation = operation

    def event(self, event: Event, slot: Slot, size_bytes: int) -> None:
        if f"{event} {'.'.join(slot.kind.split('.')[1:2])}" == self.operation:
            raise InterruptedError(self.operation)


class Pair:
    """Two sites of one job, with journals that survive them: b asks a."""

    def __init__(self) -> None:
        self.mailbox = MemoryMailbox()
        self.journals = {name: MemoryJournal() for name in "ab"}

    async def role(self, me: str, operation: str = "") -> list[int | None]:
        ch = Channel("job-1/0", me, ("a", "b"), self.mailbox, self.journals[me], CrashHere(operation))
        ch = ch.under(labeled.REVEALS)
        if me == "b":
            return await labeled_native.query(ch, "a", ITEMS, 16)
        return await labeled_native.serve(ch, "b", ITEMS[:2], [4, 7], 16)

    async def restarted(self, me: str, operation: str) -> list[int | None]:
        """What the querier finds, or the error of the role that crashed and came back."""
        found: list[int | None] = []
        lost: StateLost | None = None
        async with anyio.create_task_group() as tasks:

            async def other() -> None:
                found.extend(await self.role("b" if me == "a" else "a"))

            tasks.start_soon(other)
            with pytest.raises(InterruptedError):
                await self.role(me, operation)
            try:
                found.extend(await self.role(me))
            except StateLost as error:
                lost = error
                tasks.cancel_scope.cancel()
        if lost:
            raise lost
        return found


@pytest.mark.usefixtures("stand_in")
def test_roles_that_ended_are_repeated_from_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in a later step costs nothing, and no child."""

    async def both(pair: Pair) -> list[int | None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pair.role, "a")
            return await pair.role("b")

    async def scenario() -> None:
        pair = Pair()
        assert await both(pair) == [4, 7, None]
        sent = dict(pair.mailbox.slots)
        monkeypatch.setattr(process, "COMMAND", ["/nowhere/python"])
        assert await both(pair) == [4, 7, None]
        assert pair.mailbox.slots == sent

    anyio.run(scenario)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("site", "operation"),
    [("b", "made Found-a"), ("a", "received native-1"), ("a", "made native-4"), ("a", "sent native-4")],
)
def test_a_crash_while_no_child_is_needed_any_more_or_yet(site: str, operation: str) -> None:
    """The role goes on as if nothing had been."""
    assert anyio.run(Pair().restarted, site, operation) == [4, 7, None]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("site", "operation"),
    [
        *(("b", f"{event} native-{number}") for event, number in zip(("made", "sent") * 2, (1, 1, 3, 3), strict=True)),
        *(("b", f"received native-{number}") for number in (2, 4)),
        *(("a", operation) for operation in ("made native-2", "sent native-2", "received native-3")),
    ],
)
def test_a_crash_while_the_child_has_keys_loses_them(site: str, operation: str) -> None:
    """StateLost says what to do; no slot is filled twice, which the mailbox would not take."""
    pair = Pair()
    with pytest.raises(StateLost, match=rf"{site} was restarted in job-1/0, and its keys .* Submit the job again"):
        anyio.run(pair.restarted, site, operation)
    assert all(times == 1 for journal in pair.journals.values() for times in journal.made.values())


@pytest.mark.usefixtures("stand_in")
def test_a_peers_bytes_that_the_package_rejects_name_the_peer() -> None:
    """BadMessage, as with the other method."""

    async def scenario() -> None:
        pair = Pair()
        slot = Slot("job-1/0", "psi.native-2.NativeMessage", "a", "b")
        await pair.mailbox.put(slot, NativeMessage(body=b"odd").SerializeToString())
        with pytest.raises(
            BadMessage, match=r"a sent something in psi\. of job-1/0 that cannot be used: .*RuntimeError"
        ):
            await pair.role("b")

    anyio.run(scenario)


def test_a_crash_of_the_child_ends_the_role_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU without AVX-512 would do, if it got that far."""
    monkeypatch.setattr(process, "COMMAND", script(tmp_path, FAULTS["dies of SIGILL"][0]))
    with pytest.raises(SiteFailed, match=r"died during querier_request of SIGILL\. .*method 'apsi'"):
        anyio.run(Pair().role, "b")


NATIVE = {"columns": ["a"], "transform": "onehot", "method": "apsi-native"}


@pytest.mark.parametrize("step", [NATIVE, NATIVE | {"transform": "target", "target": "t"}])
def test_a_machine_that_cannot_run_it_refuses_the_job(monkeypatch: pytest.MonkeyPatch, step: dict[str, Any]) -> None:
    """At admission, and the reason names the method."""
    monkeypatch.setattr(native_apsi, "available", partial(raising, native_apsi.UnavailableError("No AVX-512.")))
    job = Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": [step]})
    with pytest.raises(Refused, match=r"cannot run method 'apsi-native': No AVX-512\."):
        policy.check_machine(job)
    policy.check_machine(Pipeline.model_validate(job.model_dump() | {"steps": [step | {"method": "apsi"}]}))


def raising(error: Exception) -> None:
    raise error


def test_a_role_on_a_machine_that_cannot_run_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without admission, in a simulation."""
    monkeypatch.setattr(native_apsi, "available", partial(raising, native_apsi.UnavailableError("No AVX-512.")))
    with pytest.raises(ConfigError, match=r"No AVX-512\. Use method 'apsi'\."):
        labeled_native.check(16)


@pytest.mark.usefixtures("stand_in")
def test_sets_above_the_table_are_for_the_other_method() -> None:
    """Before anything is sent."""
    labeled_native.check(native_apsi.LARGEST_SET)
    with pytest.raises(TooManyCategories, match=r"at most 320 .* these are 321\. Use method 'apsi'\."):
        labeled_native.check(native_apsi.LARGEST_SET + 1)


def test_the_report_names_the_message_that_reveals() -> None:
    """The fourth, in place of PsiAnswer."""
    pipeline = Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": [NATIVE]})

    def reported(kind: str) -> list[str]:
        return [line["what"] for line in disclosure.from_messages("job-1", pipeline, [("job-1/0", kind, "a")])]

    assert reported("psi.native-4.PsiAnswer") == [labeled.REVEALS.what]
    assert not any(reported(f"psi.native-{number}.NativeMessage") for number in (1, 2, 3))


CELLS = {"s0": ["x", "y", None], "s1": ["y", "z"], "s2": ["x", "z", None, "w"], "s3": []}


def federation(directory: Path, both_directions: bool) -> None:
    tables = {site: CategorySource({"a": cells, "b": cells[:1]}) for site, cells in CELLS.items()}
    options = {"method": "apsi-native", "both_directions": both_directions}
    assert_equals_pooled(run(directory, tables, ["a", "b"], **options), tables, ["a", "b"])


@pytest.mark.skipif(bool(unavailable_here()), reason=unavailable_here() or "available")
@pytest.mark.parametrize("both_directions", [False, True])
def test_a_federation_by_the_real_package_finds_the_pooled_dictionary(tmp_path: Path, both_directions: bool) -> None:
    """Where the CPU allows it."""
    federation(tmp_path, both_directions)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("both_directions", [False, True])
def test_a_federation_by_the_stand_in_finds_the_pooled_dictionary(tmp_path: Path, both_directions: bool) -> None:
    """All roles, messages and children but for the package itself."""
    federation(tmp_path / "federation", both_directions)
