"""The page without a daemon: its configuration, its token, its reading of the audit log, what it says of a job."""

import itertools
import json
import re
import sqlite3
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from commonscale import config
from commonscale.audit import GENESIS, AuditLog, verify
from commonscale.config import ParticipantConfig
from commonscale.database import Database
from commonscale.errors import ConfigError, UnknownJob
from commonscale.pipeline import Pipeline
from participant import approvals
from participant.attachment import WorkerView
from participant.journal import MIGRATIONS, SiteJob, SiteJobs
from participant.page.app import STATIC
from participant.page.snapshot import worker_now
from participant.page.token import ensure_token, login, read_token, renew_token
from participant.page.trail import Trail

BASE = {
    "coordinator": "x:1",
    "tls": {"certificate": "a", "key": "b", "ca": "c"},
    "data": {"main": {"path": "x.csv"}},
}


def settings(**page: Any) -> ParticipantConfig:
    return config.validate(ParticipantConfig, {**BASE, "page": page}, source="participant.toml", base=Path())


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0", "127.0.0.1:7482", "localhost:7482", "[::1]:7482", "127.8.8.8:1"])
def test_a_page_listens_to_this_machine_alone(listen: str) -> None:
    """Or not at all."""
    assert settings(listen=listen).page.listen == listen


@pytest.mark.parametrize("listen", ["0.0.0.0:7482", "10.0.0.5:7482", "[::]:7482", "hospital.example.org:80"])
def test_an_address_that_others_reach_is_refused(listen: str) -> None:
    """With a remedy; a container says that it means it."""
    with pytest.raises(
        ConfigError, match=r"page: .* other machines: use 127\.0\.0\.1, and an SSH tunnel .* any_address"
    ):
        settings(listen=listen)
    assert settings(listen=listen, any_address=True).page.listen == listen


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ({"listen": "7482"}, "not an address of the form host:port"),
        ({"hosts": ["*"]}, "not a host's name"),
        ({"hosts": ["*.example.org"]}, "not a host's name"),
        ({"hosts": ["north.example.org:80"]}, "not a host's name"),
        ({"listne": ""}, "unknown key 'page.listne'; known keys here: any_address, hosts, listen"),
    ],
)
def test_a_bad_page_table_is_a_sentence(page: dict[str, Any], words: str) -> None:
    """No pattern of hosts, which would let a rebound name in."""
    with pytest.raises(ConfigError, match=words):
        settings(**page)


def test_the_token_is_private_and_stays(tmp_path: Path) -> None:
    """Made once, readable by its owner alone, another one only on demand."""
    first = ensure_token(tmp_path / "state")
    assert first.startswith("cs_")
    assert ensure_token(tmp_path / "state") == first
    second = renew_token(tmp_path / "state")
    assert second != first
    assert read_token(tmp_path / "state") == second
    assert stat.S_IMODE((tmp_path / "state" / "page.token").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_an_empty_token_opens_nothing(tmp_path: Path) -> None:
    """Not even an empty login."""
    way_in = login("north", tmp_path)

    async def name(token: str) -> str | None:
        return await way_in.find_name(token)

    import anyio

    assert anyio.run(name, "") is None
    (tmp_path / "page.token").write_text("")
    assert anyio.run(name, "") is None
    with pytest.raises(ConfigError, match="is empty"):
        ensure_token(tmp_path)


def write_log(path: Path, lines: int, runs: int = 3) -> AuditLog:
    log = AuditLog(path)
    for number in range(lines):
        receiver = "@coordinator" if number % 2 else "south"
        log.append(
            "sent", run=f"job-{number % runs}/0", kind="mean.MaskedVector", receiver=receiver, bytes=number,
            sealed=receiver != "@coordinator", sha256="0" * 64,
        )  # fmt: skip
    return log


def test_the_trail_pages_through_the_file(tmp_path: Path) -> None:
    """Newest first, every line once, each as it stands in the file."""
    path = tmp_path / "audit.jsonl"
    write_log(path, 25).close()
    trail = Trail(path)
    trail.refresh()
    shown: list[dict[str, Any]] = []
    before = None
    while page := trail.page(before, 10):
        shown += page
        before = page[-1]["line"]
    in_file = [json.loads(line) for line in path.read_text().splitlines()]
    assert [{key: value for key, value in line.items() if key != "line"} for line in shown] == in_file[::-1]
    assert [line["line"] for line in shown] == list(range(25, 0, -1))
    assert trail.page(1, 10) == []
    assert len(trail.page(10**14, 500)) == 25


def test_the_trail_reads_on_where_it_was(tmp_path: Path) -> None:
    """Also when a line is half written, and when the file is another one."""
    path = tmp_path / "audit.jsonl"
    log = write_log(path, 5)
    trail = Trail(path)
    trail.refresh()
    log.append("revealed", job="job-0", disclosures=[], result_sha256="")
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    trail.refresh()
    assert trail.lines == 5
    path.write_bytes(whole)
    trail.refresh()
    assert trail.lines == 6
    assert trail.revealed("job-0") is not None
    path.rename(tmp_path / "evidence.jsonl")
    trail.refresh()
    assert (trail.lines, trail.messages) == (0, 0)
    write_log(path, 2).close()
    trail.refresh()
    assert (trail.lines, trail.messages) == (2, 2)


def test_the_trail_adds_up_what_left(tmp_path: Path) -> None:
    """By run, receiver and seal."""
    path = tmp_path / "audit.jsonl"
    write_log(path, 12).close()
    trail = Trail(path)
    trail.refresh()
    assert [(g.run, g.receiver, g.sealed, g.messages, g.bytes) for g in trail.left("job-0")] == [
        ("job-0/0", "@coordinator", False, 2, 3 + 9),
        ("job-0/0", "south", True, 2, 0 + 6),
    ]
    assert sum(group.bytes for group in trail.everything()) == trail.bytes == sum(range(12))


@pytest.mark.parametrize(
    "line", [b"not json", b"[1]", b'{"what": "sent"}', b'{"what": "sent", "run": 1, "bytes": "x"}']
)
def test_a_changed_line_is_shown_and_not_counted(tmp_path: Path, line: bytes) -> None:
    """The page goes on; verifying names the line."""
    path = tmp_path / "audit.jsonl"
    log = write_log(path, 4)
    lines = path.read_bytes().splitlines()
    lines[1] = line
    path.write_bytes(b"\n".join(lines) + b"\n")
    trail = Trail(path)
    trail.refresh()
    assert (trail.lines, trail.messages) == (4, 3)
    assert trail.page(None, 10)[2]["line"] == 2
    found = trail.verify(log)
    assert not found["intact"]
    assert "broken at line 2" in found["fault"]
    log.close()


def test_verifying_notices_an_end_that_was_cut_off(tmp_path: Path) -> None:
    """Every line that is left fits; but the daemon knows how many it wrote, and the last hash."""
    path = tmp_path / "audit.jsonl"
    log = write_log(path, 6)
    trail = Trail(path)
    assert trail.verify(log) == {"intact": True, "entries": 6, "last_hash": log.head[1], "fault": ""}
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    assert "ends at line 4; this daemon has written 6" in trail.verify(log)["fault"]
    path.unlink()
    write_log(path, 6, runs=1).close()
    assert "not the one that this daemon wrote" in trail.verify(log)["fault"]
    path.unlink()
    assert not trail.verify(log)["intact"]
    log.close()


def test_verifying_goes_on_while_the_daemon_writes(tmp_path: Path) -> None:
    """A line that is being written is no broken line."""
    path = tmp_path / "audit.jsonl"
    log = write_log(path, 50)
    stop = threading.Event()

    def write() -> None:
        # Few enough that reading them all again and again ends also where the disk is fast.
        for _ in range(400):
            if stop.is_set():
                return
            log.append("sent", run="job/0", kind="k" * 3000, receiver="south", bytes=1, sealed=True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        trail = Trail(path)
        assert all(trail.verify(log)["intact"] for _ in range(20))
    finally:
        stop.set()
        writer.join()
    log.close()


def make_long(path: Path, lines: int) -> None:
    """A real chain, without waiting for the disk at each line."""
    from commonscale.audit import _hash

    previous = GENESIS
    with path.open("w") as file:
        for number in range(1, lines + 1):
            entry = {
                "number": number, "at": "2026-01-01T00:00:00.000+00:00", "what": "sent",
                "run": f"vital-signs-{number // 200}/0", "kind": "mean.MaskedVector", "receiver": "@coordinator",
                "bytes": 4096, "sealed": False, "sha256": "0" * 64, "previous": previous,
            }  # fmt: skip
            entry["hash"] = previous = _hash(entry)
            file.write(json.dumps(entry) + "\n")


def test_a_long_log_is_read_in_small_pieces(tmp_path: Path) -> None:
    """No call goes on when its time is up, by a clock that moves at every look; once read, a look reads nothing."""
    path = tmp_path / "audit.jsonl"
    make_long(path, 20_000)
    trail = Trail(path)
    calls, looks = 0, itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.01 * next(looks), sleep=lambda _: None)
    with patch("participant.page.trail.time", clock):
        while calls == 0 or trail.unread:
            with patch.object(Trail, "_take", autospec=True, side_effect=Trail._take) as take:
                trail.refresh(0.025)
            assert take.call_count <= 2
            calls += 1
    assert calls > 1
    assert (trail.lines, trail.messages) == (20_000, 20_000)
    with patch.object(Trail, "_take") as take:
        trail.refresh()
    assert not take.called
    assert len(verify(path)) == 20_000


def site_job(job_id: str, state: str = "open", approval: str = "pending", **pipeline: Any) -> SiteJob:
    spec = Pipeline.model_validate({"sites": ["a", "b", "c"], "steps": [{"columns": ["age"]}], **pipeline}).to_bytes()
    return SiteJob(job_id, spec, "mona", state, approval, "", 2_000_000_000_000, 1)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"columns": ["x"], "method": "sac-proportional"}, "signs, the zeros and the rough size"),
        ({"columns": ["x"], "method": "ckks"}, "trusts the coordinator to follow the protocol"),
        ({"columns": ["x"], "method": "ckks", "ckks": {"profile": "test"}}, "NOT secure"),
        ({"columns": ["x"], "method": "ckks", "ckks": {"keys": "reuse"}}, "kept for later jobs"),
        ({"columns": ["x"], "method": "ckks", "ckks": {"recovery": True}}, "stand in for this one"),
        ({"transform": "bytes-norm", "columns": ["x"]}, "first letters of the longest text"),
        ({"transform": "onehot", "columns": ["x"], "extends": "job-1"}, "extends job job-1"),
        ({"transform": "minmax", "columns": ["x", "y"]}, "it takes y as step 1 (zscore) leaves it"),
    ],
)
def test_what_to_stop_at_is_said(step: dict[str, Any], words: str) -> None:
    """Before a person approves."""
    asked = approvals.request(site_job("j", steps=[{"columns": ["y"]}, step]).spec)
    assert any(line.startswith("Step 2: ") and words in line for line in asked["warnings"])
    assert not any(line.startswith("Step 1: ") for line in asked["warnings"])


def test_counts_have_no_share_in_escrow() -> None:
    """So nobody can stand in for a site that is lost while they are added, and nothing says so."""
    counts = {"transform": "robust", "columns": ["x"], "method": "ckks", "ckks": {"recovery": True}}
    asked = approvals.request(site_job("j", steps=[counts]).spec)
    assert not any("stand in" in line for line in asked["warnings"])
    assert not any("key share" in line["what"] for line in asked["reveals"])


def test_everything_that_a_job_asks_for_is_said() -> None:
    """Columns beside those that are encoded, options, and what each step reveals to whom."""
    target = {"transform": "target", "columns": ["ward"], "target": "died", "smoothing": 3.0}
    asked = approvals.request(site_job("j", steps=[{"columns": ["age"], "rounds": "one"}, target]).spec)
    first, second = asked["steps"]
    assert (first["columns"], first["methods"], first["options"]) == (["age"], ["masks"], ['rounds = "one"'])
    assert (second["beside"], second["protocol"]) == (["died"], "target/oprf")
    assert "smoothing = 3.0" in second["options"]
    assert {"coordinator"} in [set(line["to"]) for line in asked["reveals"]]
    assert {line.get("step") for line in asked["reveals"]} == {None, 0, 1}


@pytest.mark.parametrize(
    ("sites", "columns", "dataset", "warned"),
    [
        (["a", "b", "c", "d"], ["age"], "main", True),
        (["a", "b", "c", "d", "e"], ["age", "chol"], "main", True),
        (["a", "b", "c"], ["age"], "main", False),
        (["a", "b", "d"], ["age"], "main", False),
        (["a", "b", "c", "d", "e", "f"], ["age"], "main", False),
        (["a", "b", "c", "d"], ["chol"], "main", False),
        (["a", "b", "c", "d"], ["age"], "other", False),
    ],
)
def test_a_job_that_differs_by_few_sites_is_pointed_out(
    sites: list[str], columns: list[str], dataset: str, warned: bool
) -> None:
    """Its result minus an earlier one's is theirs alone."""
    earlier = site_job("old", "done", "approved", sites=sites, steps=[{"columns": columns}], dataset=dataset)
    assert bool(approvals.subtractions(site_job("new"), [earlier])) is warned


@pytest.fixture
def jobs(tmp_path: Path) -> SiteJobs:
    jobs = SiteJobs(Database(f"sqlite:///{tmp_path / 'p.db'}", MIGRATIONS))
    spec = site_job("x").spec
    for number in range(5):
        jobs.open(f"job-{number}", spec, "mona", 2_000_000_000_000)
    return jobs


def test_a_worker_is_shown_with_what_the_policy_says_of_its_models() -> None:
    """Pinned as it is, pinned as another, not named; how far it is, in hundredths."""
    offered = {"risk": "a" * 64, "stay": "b" * 64, "toy": "c" * 64}
    seen = WorkerView("working", "worker 1", offered, "risk: trains, round 2 of 9", 0.3712, "of <b>Miller</b>", 5)
    found = worker_now(seen, {"risk": "a" * 64, "stay": "d" * 64})
    assert [(model["name"], model["pinned"], model["in_policy"]) for model in found["models"]] == [
        ("risk", True, True), ("stay", False, True), ("toy", False, False),
    ]  # fmt: skip
    assert (found["state"], found["share"], found["last_error"]) == ("working", 0.37, "of <b>Miller</b>")
    assert json.dumps(found)


def test_of_many_people_one_decides(jobs: SiteJobs) -> None:
    """The others are told that it was decided."""
    jobs.ask("job-0")
    won: list[str] = []
    lost: list[str] = []

    def decide(number: int) -> None:
        try:
            approvals.decide(jobs, "job-0", "refused", f"reason {number}", "page")
            won.append(f"reason {number}")
        except ConfigError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [jobs.get("job-0").reason]
    assert set(lost) == {"Job job-0 does not wait for approval: it was refused already by page."}


def test_only_what_waits_is_decided(jobs: SiteJobs) -> None:
    """Not a job that the policy decides, one that is over, or one that nobody knows."""
    with pytest.raises(ConfigError, match="this site's policy decides"):
        approvals.decide(jobs, "job-0", "approved", "", "page")
    jobs.ask("job-1")
    jobs.end("job-1", "failed", "cancelled")
    with pytest.raises(ConfigError, match="it is over"):
        approvals.decide(jobs, "job-1", "approved", "", "page")
    with pytest.raises(UnknownJob):
        approvals.decide(jobs, "nothing", "approved", "", "page")
    jobs.ask("job-2")
    with pytest.raises(ConfigError, match="at most 500"):
        approvals.decide(jobs, "job-2", "refused", "x" * 501, "page")
    assert not jobs.ask("job-2"), "asked once"


def test_a_decision_is_noted_once(jobs: SiteJobs, tmp_path: Path) -> None:
    """By the daemon alone, also when the job ended before it could act on it; the chain goes on."""
    audit = AuditLog(tmp_path / "audit.jsonl")
    jobs.ask("job-0")
    approvals.note(jobs, audit, "job-0")
    approvals.decide(jobs, "job-0", "refused", "not  this\nweek", "command")
    jobs.end("job-0", "failed", "over")
    assert jobs.ended_unnoted() == ["job-0"]
    for _ in range(2):
        approvals.note_ended(jobs, audit, jobs.ended_unnoted())
    audit.close()
    (line,) = verify(tmp_path / "audit.jsonl")
    assert [line[key] for key in ("what", "job", "decision", "reason", "by")] == [
        "decided", "job-0", "refused", "not this week", "command",
    ]  # fmt: skip


def test_jobs_are_paged_without_a_gap(jobs: SiteJobs) -> None:
    """Also where several came in the same millisecond."""
    everything = [job.id for job in jobs.all()]
    paged: list[str] = []
    last = None
    while page := jobs.all(before=last, limit=2):
        paged += [job.id for job in page]
        last = page[-1]
    assert paged == everything


def test_a_database_of_an_older_release_is_taken_over(tmp_path: Path) -> None:
    """Its jobs are there; what was decided then says nobody, and is not noted now."""
    path = tmp_path / "p.db"
    Database(f"sqlite:///{path}", MIGRATIONS).close()
    with sqlite3.connect(path) as raw:
        for column in ("decided_by", "decided_at_ms", "noted"):
            raw.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        raw.execute("UPDATE alembic_version SET version_num = 'participant_0002'")
        raw.execute(
            "INSERT INTO jobs (id, spec, analyst, state, approval, reason, deadline_at_ms, received_at_ms, error) "
            "VALUES ('old', x'00', 'mona', 'done', 'approved', '', 1, 1, ''), "
            "('waits', x'00', 'mona', 'open', 'pending', '', 1, 1, '')"
        )
    jobs = SiteJobs(Database(f"sqlite:///{path}", MIGRATIONS))
    assert (jobs.get("old").approval, jobs.get("old").decided_by) == ("approved", "")
    assert jobs.ended_unnoted() == []
    approvals.decide(jobs, "waits", "approved", "", "command")
    assert jobs.get("waits").decided_by == "command"


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda p: p.name)
def test_the_page_is_made_of_text_alone(path: Path) -> None:
    """Nothing of a peer is ever read as HTML or as code, and nothing comes from elsewhere."""
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bstyle=|\bon[a-z]+=\"", text)
