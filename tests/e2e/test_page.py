"""The site's page over a real daemon: who gets in, approvals, what it shows and what it never shows."""

import base64
import csv
import http.client
import io
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commonscale.audit import verify
from commonscale.client import Client, Job
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from tests.e2e.conftest import GOOD, job, run, submit
from tests.e2e.test_jobs import command, config_of
from tests.patience import PATIENCE_S, eventually

SITES = [*GOOD, "manual"]


@dataclass
class Visitor:
    """A browser without a screen; keeps all that it was told."""

    port: int
    cookie: str = ""
    told: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers, text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = {"Origin": f"http://127.0.0.1:{self.port}", "Cookie": self.cookie, **headers}
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            text = response.read().decode()
            found = {name.lower(): value for name, value in response.getheaders()}
            self.told.append(f"{found}{text}")
            return response.status, found, text
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """JSON, or a failure."""
        status, _, text = self.ask("GET", path)
        assert status == 200, (status, text)
        return json.loads(text)

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON."""
        status, _, text = self.ask("POST", path, json.dumps(body))
        return status, json.loads(text)

    def log_in(self, token: str) -> int:
        """With a token."""
        status, headers, _ = self.ask("POST", "/login", f"token={token}")
        if "set-cookie" in headers:
            assert "HttpOnly" in headers["set-cookie"]
            assert "SameSite=strict" in headers["set-cookie"]
            self.cookie = headers["set-cookie"].partition(";")[0]
        return status


def page_port(federation: LocalFederation, site: str) -> int:
    return int(json.loads(federation.participants[site].ready_path.read_text())["page_port"])


def token_of(federation: LocalFederation, site: str) -> str:
    return (federation.directory / site / "state" / "page.token").read_text().strip()


@pytest.fixture
def stranger(federation: LocalFederation) -> Visitor:
    return Visitor(page_port(federation, "manual"))


@pytest.fixture
def operator(federation: LocalFederation) -> Visitor:
    visitor = Visitor(page_port(federation, "manual"))
    assert visitor.log_in(token_of(federation, "manual")) == 303
    return visitor


def start(federation: LocalFederation, **step: Any) -> str:
    """Submit a job that waits for the site manual."""

    async def work() -> str:
        async with Client(federation.analyst()) as client:
            return (await client.submit(Pipeline.model_validate(job(SITES, ["age"], **step)))).id

    return run(work)


def wait(federation: LocalFederation, job_id: str) -> Job:
    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            return await client.wait(job_id)

    return run(work)


def until_waiting(visitor: Visitor, job_id: str) -> dict[str, Any]:
    """The job as the page shows it, once it does."""

    def waiting() -> dict[str, Any]:
        return next((found for found in visitor.get("/api/state")["waiting"] if found["job"] == job_id), {})

    return eventually(waiting)


def refuse_all(visitor: Visitor) -> None:
    for found in visitor.get("/api/state")["waiting"]:
        visitor.post(f"/api/jobs/{found['job']}/refuse", {"reason": "tidying up"})


READS = ["/api/state", "/api/events", "/api/jobs?before=x", "/api/jobs/x", "/api/audit", "/api/left.csv"]
WRITES = ["/api/jobs/x/approve", "/api/jobs/x/refuse", "/api/verify"]


def test_nothing_is_open_to_strangers(stranger: Visitor) -> None:
    """A page sends to the login, an answer says 401; files of the page hold nothing."""
    status, headers, _ = stranger.ask("GET", "/")
    assert (status, headers["location"]) == (303, "/login")
    for path in READS:
        assert stranger.ask("GET", path)[0] == 401, path
    for path in WRITES:
        assert stranger.ask("POST", path, "{}")[0] == 401, path
        assert stranger.ask("GET", path)[0] in (404, 405), path
    status, headers, text = stranger.ask("GET", "/login")
    assert status == 200
    assert "site manual" in text
    assert "commonscale page token" in text
    assert "default-src 'none'" in headers["content-security-policy"]
    assert stranger.ask("GET", "/static/page.js")[0] == 200
    assert stranger.ask("GET", "/static/../app.py")[0] == 404


@pytest.mark.parametrize("token", ["", "wrong", "cs_" + "A" * 43, "x" * 5000, "%00%ff"])
def test_a_wrong_token_opens_nothing(stranger: Visitor, token: str) -> None:
    """And leaves no cookie."""
    assert stranger.log_in(token) in (401, 413)
    assert stranger.cookie == ""


@pytest.mark.parametrize("cookie", ["operator~9999999999~00", "operator~~", "~", "operator", "other~9999999999~00"])
def test_a_made_up_cookie_opens_nothing(stranger: Visitor, cookie: str) -> None:
    """Its code is made with the token."""
    stranger.cookie = f"commonscale_manual={cookie}"
    assert stranger.ask("GET", "/api/state")[0] == 401


def test_another_name_for_this_machine_gets_nothing(operator: Visitor) -> None:
    """A page of elsewhere whose name was pointed here is refused."""
    for host in ("evil.example.org", f"evil.example.org:{operator.port}", "127.0.0.1.evil.example.org", "*"):
        assert operator.ask("GET", "/api/state", Host=host)[0] == 400, host
    assert operator.ask("GET", "/api/state", Host=f"localhost:{operator.port}")[0] == 200


def test_another_page_cannot_post(federation: LocalFederation, operator: Visitor) -> None:
    """Not even with the operator's cookie; the job goes on waiting."""
    job_id = start(federation)
    until_waiting(operator, job_id)
    for origin in ("http://evil.example.org", "null", "", f"http://127.0.0.1:{operator.port + 1}"):
        for path in (f"/api/jobs/{job_id}/approve", "/login", "/logout"):
            assert operator.ask("POST", path, "{}", Origin=origin)[0] == 403, (origin, path)
    assert operator.ask("GET", f"/api/jobs/{job_id}/approve")[0] in (404, 405)
    assert until_waiting(operator, job_id)
    refuse_all(operator)


def test_approved_on_the_page_a_job_completes(federation: LocalFederation, operator: Visitor) -> None:
    """The person sees all that it asks for; the decision, what left and what was revealed are then on the page."""
    job_id = start(federation, rounds="one", name="vital-signs")
    asked = until_waiting(operator, job_id)
    assert (asked["name"], asked["analyst"], asked["dataset"]) == ("vital-signs", "analyst", "main")
    assert asked["others"] == GOOD
    assert asked["steps"][0]["columns"] == ["age"]
    assert asked["steps"][0]["methods"] == ["masks"]
    assert any("mean and mean square" in line["what"] for line in asked["reveals"])
    assert 0 < asked["until_ms"] - time.time() * 1000 <= 120_000
    assert operator.post(f"/api/jobs/{job_id}/approve") == (200, {"job": job_id, "decision": "approved"})
    assert wait(federation, job_id).state == "done"
    # The site's part ends a moment after the analyst hears of the end.
    found = eventually(lambda: operator.get(f"/api/jobs/{job_id}"), lambda row: row["state"] == "done")
    assert (found["approval"], found["decided_by"]) == ("approved", "page")
    assert {group["protocol"] for group in found["left"]} == {"admission", "zscore/masks"}
    assert any("mean square" in line["what"] for line in found["revealed"]["disclosures"])
    sent = [e for e in audit_file(federation) if e["what"] == "sent" and e["run"].startswith(job_id)]
    assert found["messages"] == len(sent)
    assert found["bytes"] == sum(entry["bytes"] for entry in sent)
    status, answer = operator.post(f"/api/jobs/{job_id}/refuse", {"reason": "too late"})
    assert status == 409
    assert answer == {"error": f"Job {job_id} does not wait for approval: it was approved already by page."}


def audit_file(federation: LocalFederation) -> list[dict[str, Any]]:
    return verify(federation.directory / "manual" / "state" / "audit.jsonl")


def test_refused_on_the_page_the_analyst_sees_the_reason(federation: LocalFederation, operator: Visitor) -> None:
    """A reason is asked for; it is in the audit log."""
    job_id = start(federation)
    until_waiting(operator, job_id)
    for body in (None, [], {}, {"reason": ""}, {"reason": " \n"}, {"reason": 3}):
        status, answer = operator.post(f"/api/jobs/{job_id}/refuse", body)
        assert status == 400, answer
    assert operator.post(f"/api/jobs/{job_id}/refuse", {"reason": "x" * 501})[0] == 409
    assert operator.ask("POST", f"/api/jobs/{job_id}/refuse", "x" * 20_000)[0] == 413
    assert operator.post(f"/api/jobs/{job_id}/refuse", {"reason": "not <b>this</b> week"})[0] == 200
    ended = wait(federation, job_id)
    assert ended.state == "refused"
    assert "manual refused: not <b>this</b> week" in ended.wire.error
    (line,) = (entry for entry in audit_file(federation) if entry["what"] == "decided" and entry["job"] == job_id)
    assert (line["decision"], line["reason"], line["by"]) == ("refused", "not <b>this</b> week", "page")


def test_a_decision_by_command_is_in_the_log_too(federation: LocalFederation, operator: Visitor) -> None:
    """The daemon notes it before its answer leaves."""
    job_id = start(federation)
    until_waiting(operator, job_id)
    command("approvals", "approve", job_id, "--config", config_of(federation, "manual"))
    assert operator.post(f"/api/jobs/{job_id}/approve")[0] == 409
    assert wait(federation, job_id).state == "done"
    of_job = [e for e in audit_file(federation) if e.get("run", e.get("job", "")).partition("/")[0] == job_id]
    assert [entry["what"] for entry in of_job[:2]] == ["decided", "sent"]
    assert of_job[0]["by"] == "command"
    assert operator.get(f"/api/jobs/{job_id}")["decided_by"] == "command"


def test_of_several_visitors_one_decides(federation: LocalFederation, operator: Visitor) -> None:
    """At the same moment, half of them for and half against."""
    job_id = start(federation)
    until_waiting(operator, job_id)
    answers: list[int] = []

    def decide(number: int) -> None:
        visitor = Visitor(operator.port, operator.cookie)
        verb = "approve" if number % 2 else "refuse"
        answers.append(visitor.post(f"/api/jobs/{job_id}/{verb}", {"reason": "no"})[0])

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] + [409] * 7
    assert wait(federation, job_id).state in ("done", "refused")
    assert sum(entry["what"] == "decided" and entry["job"] == job_id for entry in audit_file(federation)) == 1


@pytest.mark.long
def test_a_cancelled_job_waits_no_longer(federation: LocalFederation, operator: Visitor) -> None:
    """A decision that comes too late is told so."""
    job_id = start(federation)
    until_waiting(operator, job_id)

    async def cancel() -> None:
        async with Client(federation.analyst()) as client:
            await client.cancel(job_id)

    run(cancel)
    eventually(lambda: operator.get("/api/state"), lambda state: not state["waiting"])
    status, answer = operator.post(f"/api/jobs/{job_id}/approve")
    assert (status, answer["error"]) == (409, f"Job {job_id} does not wait for approval: it is over.")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/jobs/nothing", 404),
        ("/api/jobs/..%2f..%2fetc", 400),
        ("/api/jobs/A", 400),
        ("/api/jobs", 400),
        ("/api/jobs?before=nothing", 404),
        ("/api/audit?before=x", 400),
        ("/api/audit?before=-1", 400),
        ("/api/audit?before=" + "9" * 30, 400),
        ("/api/audit?limit=" + "9" * 5000, 400),
        ("/nothing", 404),
    ],
)
def test_odd_questions_get_plain_answers(operator: Visitor, path: str, status: int) -> None:
    """No traceback, no HTML of somebody's name."""
    found, headers, text = operator.ask("GET", path)
    assert found == status or (status == 400 and found == 404)
    assert "Traceback" not in text
    assert headers["content-type"].split(";")[0] in ("application/json", "text/plain")


def test_the_log_on_the_page_is_the_file(federation: LocalFederation, operator: Visitor) -> None:
    """Line for line; what left adds up to it."""
    submitted = start(federation, method="shares")
    until_waiting(operator, submitted)
    operator.post(f"/api/jobs/{submitted}/approve")
    wait(federation, submitted)
    shown: list[dict[str, Any]] = []
    query = "/api/audit?limit=7"
    while lines := operator.get(query)["lines"]:
        shown += lines
        query = f"/api/audit?limit=7&before={lines[-1]['line']}"
    entries = audit_file(federation)
    assert [{k: v for k, v in line.items() if k != "line"} for line in shown] == entries[::-1]
    sent = [entry for entry in entries if entry["what"] == "sent"]
    rows = list(csv.DictReader(io.StringIO(operator.ask("GET", "/api/left.csv")[2])))
    assert sum(int(row["messages"]) for row in rows) == len(sent)
    assert sum(int(row["bytes"]) for row in rows) == sum(entry["bytes"] for entry in sent)
    of_job = {(row["protocol"], row["receiver"], row["sealed"]) for row in rows if row["job"] == submitted}
    assert ("zscore/shares", "b", "yes") in of_job
    assert ("admission", "coordinator", "no") in of_job
    left = eventually(lambda: operator.get("/api/state")["left"], lambda left: left["messages"] == len(sent))
    assert left["unread"] == 0


def test_a_broken_chain_is_reported(federation: LocalFederation, operator: Visitor) -> None:
    """On demand, naming the line, on every visitor's page; mended, it is intact again."""
    path = federation.directory / "manual" / "state" / "audit.jsonl"
    status, found = operator.post("/api/verify")
    assert (status, found["intact"], found["entries"]) == (200, True, len(audit_file(federation)))
    assert found["last_hash"] == audit_file(federation)[-1]["hash"]
    whole = path.read_bytes()
    changed = whole.replace(b'"sealed": false', b'"sealed": true ', 1)
    assert len(changed) == len(whole)
    with path.open("r+b") as file:
        file.write(changed)
    try:
        found = operator.post("/api/verify")[1]
        assert not found["intact"]
        assert "is broken at line" in found["fault"]
        eventually(lambda: operator.get("/api/state")["audit"]["verified"], lambda shown: shown == found)
    finally:
        with path.open("r+b") as file:
            file.write(whole)
    assert operator.post("/api/verify")[1]["intact"]


def test_events_tell_of_a_job_that_comes(federation: LocalFederation, operator: Visitor) -> None:
    """And a visitor who does not read them holds up nobody."""
    stuck = [socket.create_connection(("127.0.0.1", operator.port)) for _ in range(20)]
    for one in stuck:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {operator.cookie}\r\n\r\n".encode())
    connection = http.client.HTTPConnection("127.0.0.1", operator.port, timeout=PATIENCE_S)
    connection.request("GET", "/api/events", headers={"Cookie": operator.cookie})
    stream = connection.getresponse()
    try:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert states(stream).__next__()["site"] == "manual"
        job_id = start(federation)
        waiting = next(s for s in states(stream) if any(found["job"] == job_id for found in s["waiting"]))
        assert waiting["connection"]["connected"]
        begun = time.monotonic()
        operator.post(f"/api/jobs/{job_id}/approve")
        assert wait(federation, job_id).state == "done"
        assert time.monotonic() - begun < 60
        row = next(r for s in states(stream) for r in s["jobs"] if r["job"] == job_id and r["state"] == "done")
        assert row["messages"] == 6
    finally:
        connection.close()
        for one in stuck:
            one.close()


def states(stream: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := stream.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def test_another_token_ends_all_sessions(federation: LocalFederation, operator: Visitor) -> None:
    """Printed by the site's own command, never shown by the page."""
    config = config_of(federation, "manual")
    old = token_of(federation, "manual")
    assert old in command("page", "token", "--config", config)
    renewed = json.loads(command("page", "token", "--renew", "--config", config, "--format", "json"))["token"]
    assert renewed == token_of(federation, "manual") != old
    assert operator.ask("GET", "/api/state")[0] == 401
    assert operator.log_in(old) == 401
    assert operator.log_in(renewed) == 303
    assert operator.get("/api/state")["site"] == "manual"
    mode = (federation.directory / "manual" / "state" / "page.token").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_logging_out_takes_the_cookie(operator: Visitor) -> None:
    """By a post of the page itself."""
    status, headers, _ = operator.ask("POST", "/logout", "")
    assert (status, headers["location"]) == (303, "/login")
    assert "Max-Age=0" in headers["set-cookie"]


@pytest.mark.long
def test_a_decision_made_while_the_daemon_is_down(federation: LocalFederation, operator: Visitor) -> None:
    """It counts when the daemon is back, and is in its log once; who was logged in still is."""
    job_id = start(federation)
    until_waiting(operator, job_id)
    daemon = federation.participants["manual"]
    daemon.kill()
    command("approvals", "approve", job_id, "--config", config_of(federation, "manual"))
    daemon.start()
    daemon.wait_ready()
    assert wait(federation, job_id).state == "done"
    decided = [entry for entry in audit_file(federation) if entry["what"] == "decided" and entry["job"] == job_id]
    assert [entry["by"] for entry in decided] == ["command"]
    again = Visitor(page_port(federation, "manual"), operator.cookie)
    eventually(lambda: again.get(f"/api/jobs/{job_id}"), lambda row: row["state"] == "done")


@pytest.mark.long
def test_a_page_that_is_not_wanted_or_cannot_be(federation: LocalFederation, tmp_path: Path) -> None:
    """Empty: no page. A taken port or an address for all is one sentence and exit code 2."""
    text = Path(config_of(federation, "manual")).read_text()
    page = '[page]\nlisten = "127.0.0.1:0"'
    assert page in text
    own = tmp_path / "participant.toml"

    def write(listen: str) -> str:
        own.write_text(text.replace(page, f'[page]\nlisten = "{listen}"'))
        return str(own)

    taken = page_port(federation, "manual")
    error = command("participant", "--config", write(f"127.0.0.1:{taken}"), expect=2)
    assert f"Cannot listen on 127.0.0.1:{taken}" in error
    assert "Change page.listen." in error
    assert "can be reached from other machines" in command("participant", "--config", write("0.0.0.0:0"), expect=2)
    assert "has no page" in command("page", "token", "--config", write(""), expect=2)


def test_nothing_secret_is_ever_told(federation: LocalFederation, operator: Visitor) -> None:
    """Keys, tokens and cells of the site's table, looked for in all answers, also to strangers and to mistakes."""
    state = federation.directory / "manual" / "state"
    assert submit(federation, job(GOOD, ["age"])).state == "done"
    job_id = start(federation)
    until_waiting(operator, job_id)
    operator.post(f"/api/jobs/{job_id}/approve")
    wait(federation, job_id)
    rows = operator.get("/api/state")["jobs"]
    paths = ["/", "/login", *READS[:1], *READS[4:], "/api/jobs/nothing", *(f"/api/jobs/{row['job']}" for row in rows)]
    for path in paths:
        operator.ask("GET", path)
    operator.post("/api/verify")
    stranger = Visitor(operator.port)
    stranger.log_in("wrong")
    told = "\n".join([*operator.told, *stranger.told])
    assert len(told) > 10_000
    vault = (state / "vault.key").read_bytes()
    key = (federation.directory / "manual" / "tls" / "manual.key").read_text()
    secrets = [token_of(federation, "manual"), vault.hex(), base64.b64encode(vault).decode(), key.splitlines()[1]]
    cells = [cell for row in (federation.directory / "manual.csv").read_text().split()[1:] for cell in row.split(",")]
    for secret in [*secrets, *(cell[:9] for cell in cells)]:
        assert secret not in told
