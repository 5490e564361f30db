"""Jobs over real daemons: refusals, approvals, unfit data, deadlines, cancelling, many at once."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from commonscale.client import Client, Job
from commonscale.errors import Equivocation, JobFailed, NotAllowed, Refused, UnknownJob
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline
from commonscale.protocols import admission
from tests.e2e.conftest import GOOD, job, pooled_rows, run, submit
from tests.patience import PATIENCE_S, eventually


def command(*arguments: str, expect: int = 0, stdin: str = "") -> str:
    """The commonscale command as a person runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "commonscale", *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, input=stdin,
    )  # fmt: skip
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def config_of(federation: LocalFederation, site: str) -> str:
    return str(federation.directory / site / "participant.toml")


def test_several_jobs_at_once(federation: LocalFederation) -> None:
    """Eight jobs of two kinds, submitted together, each with its own right numbers."""
    expected = pooled_rows(federation, GOOD)

    async def work() -> list[Job]:
        async with Client(federation.analyst()) as client:
            results: list[Job] = []

            async def one(number: int) -> None:
                columns = ["age"] if number % 2 else ["age", "chol"]
                submitted = await client.submit(Pipeline.model_validate(job(GOOD, columns)))
                results.append(await client.wait(submitted.id))

            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(one, number)
            return results

    for done in run(work):
        mean = done.result[0]["mean"]
        np.testing.assert_allclose(mean, expected.mean(axis=0)[: len(mean)], rtol=1e-12)


def test_a_description_becomes_a_page(federation: LocalFederation, tmp_path: Path) -> None:
    """Of the pooled table; a job that describes nothing has none."""
    found = submit(federation, job(GOOD, ["age", "chol"], transform="describe"), "described")
    rows = pooled_rows(federation, GOOD)
    np.testing.assert_array_equal(found.result[0]["max"], rows.max(axis=0))
    assert np.sum(found.result[0]["histogram"], axis=1).tolist() == [len(rows)] * 2
    page, config = tmp_path / "page.html", str(federation.directory / "analyst" / "analyst.toml")
    assert "bytes" in command("jobs", "describe", "described", "--config", config, "--output", str(page))
    assert f"{rows[:, 0].max():.6g}" in page.read_text()
    assert "histogram" in command("jobs", "show", "described", "--config", config)
    submit(federation, job(GOOD, ["age"]), "scaled")
    said = command("jobs", "describe", "scaled", "--config", config, "--output", str(page), expect=2)
    assert "has no step that describes" in said


def test_two_steps_in_one_job(federation: LocalFederation) -> None:
    """Each step is a run of its own."""
    pipeline = {
        "sites": GOOD,
        "steps": [{"columns": ["age"]}, {"columns": ["chol"], "method": "shares", "rounds": "one"}],
    }
    done = submit(federation, pipeline)
    expected = pooled_rows(federation, GOOD)
    got = [step["mean"][0] for step in done.result]
    np.testing.assert_allclose(got, expected.mean(axis=0), rtol=1e-12)
    names = {path.name for path in (federation.directory / "a" / "state" / "results" / done.id).iterdir()}
    assert names == {"0-zscore.skops", "1-zscore.skops", "pipeline.skops", "pipeline.json", "parameters.json"}


def test_the_disclosure_report_says_what_and_to_whom(federation: LocalFederation) -> None:
    """From what was really sent to all: one round reveals the squares, two reveal the variance, a refusal nothing."""

    def revealed(pipeline: dict[str, object]) -> list[str]:
        ended = submit(federation, pipeline)
        assert all(set(GOOD) < set(item["to"]) for item in ended.disclosures)
        return [item["what"] for item in ended.disclosures if item["protocol"] == "zscore/masks"]

    two = ["pooled count of present values and mean of each column", "pooled variance of each column"]
    assert revealed(job(GOOD, ["age"])) == two
    one = ["pooled count of present values, mean and mean square of each column"]
    assert revealed(job(GOOD, ["age"], rounds="one")) == one
    assert revealed(job([*GOOD, "narrow"], ["chol"])) == []


def test_a_site_refuses_by_policy_and_the_analyst_sees_why(federation: LocalFederation) -> None:
    """The job ends as refused, with the site's reason."""
    done = submit(federation, job([*GOOD, "narrow"], ["age", "chol"]))
    assert done.state == "refused"
    assert (
        "narrow refused: Its policy does not allow the column 'chol', of which step 0 (zscore) asks" in done.wire.error
    )
    # The coordinator has read every verdict, and the analyst the reason.
    assert [line["what"] for line in done.disclosures] == [admission.VERDICTS.what]
    with pytest.raises(Refused):
        _ = done.result
    assert submit(federation, job([*GOOD, "narrow"], ["age"])).state == "done"


def test_the_papers_formula_is_off_by_default(federation: LocalFederation) -> None:
    """A site must allow sac-proportional in so many words."""
    done = submit(federation, job(GOOD, ["age"], method="sac-proportional"))
    assert done.state == "refused"
    assert "does not allow the method 'sac-proportional'" in done.wire.error


def approvals_row(federation: LocalFederation, job_id: str) -> dict[str, Any]:
    """What the site manual's command lists of a job, if it knows it."""
    rows = json.loads(command("approvals", "list", "--config", config_of(federation, "manual"), "--format", "json"))
    return next((row for row in rows if row["job"] == job_id), {})


@pytest.mark.parametrize(("decision", "state"), [("approve", "done"), ("refuse", "refused")])
def test_a_job_waits_for_a_person(federation: LocalFederation, decision: str, state: str) -> None:
    """Approved or refused with the site's own command."""

    async def start() -> str:
        async with Client(federation.analyst()) as client:
            return (await client.submit(Pipeline.model_validate(job([*GOOD, "manual"], ["age"])))).id

    job_id = run(start)
    config = config_of(federation, "manual")
    eventually(lambda: approvals_row(federation, job_id), lambda row: row.get("approval") == "pending")
    reason = ["--reason", "not this week"] if decision == "refuse" else []
    command("approvals", decision, job_id, "--config", config, *reason)

    async def wait() -> Job:
        async with Client(federation.analyst()) as client:
            return await client.wait(job_id)

    done = run(wait)
    assert done.state == state
    if decision == "refuse":
        assert "manual refused: not this week" in done.wire.error
    command("approvals", decision, job_id, "--config", config, expect=2)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("extra", "b has no column 'extra' in data set 'odd'"),
        ("unlike", "b: column 'unlike' holds text, not numbers"),
        ("infinite", "a: column 'infinite' holds infinities"),
    ],
)
def test_unfit_data_ends_the_job_before_any_sum(federation: LocalFederation, column: str, words: str) -> None:
    """The error names site and column; the daemons go on."""
    done = submit(federation, job(GOOD, ["shared", column], dataset="odd"))
    assert done.state == "refused"
    assert words in done.wire.error
    assert submit(federation, job(GOOD, ["shared"], dataset="odd")).state == "done"


def test_constant_and_empty_columns(federation: LocalFederation) -> None:
    """Scale 1 for a constant column, nothing for a column without values, one row at a site."""
    done = submit(federation, job(GOOD, ["constant", "empty", "shared"], dataset="odd"))
    step = done.result[0]
    assert step["count"] == [5, 0, 5]
    assert step["mean"][1] is None
    assert step["scale"][0] == 1.0
    np.testing.assert_allclose([step["mean"][0], step["mean"][2]], [7.0, 3.0], rtol=1e-14)


def test_too_few_rows_are_refused(federation: LocalFederation) -> None:
    """By the site's minimum; and an unknown data set too."""
    done = submit(federation, job([*GOOD, "narrow"], ["shared"], dataset="odd"))
    assert done.state == "refused"
    assert "narrow refused:" in done.wire.error


def test_a_site_that_never_answers_is_named(federation: LocalFederation) -> None:
    """The deadline says who was awaited, in which round."""
    done = submit(federation, job([*GOOD, "ghost"], ["age"], deadline_s=2))
    assert done.state == "failed"
    assert "while ghost was awaited in round Signed" in done.wire.error


def test_a_job_is_cancelled(federation: LocalFederation) -> None:
    """For everyone, and it stays cancelled."""

    async def work() -> Job:
        async with Client(federation.analyst()) as client:
            job_id = (await client.submit(Pipeline.model_validate(job([*GOOD, "ghost"], ["age"])))).id
            await client.cancel(job_id)
            return await client.wait(job_id)

    done = run(work)
    assert done.state == "cancelled"
    assert "Cancelled by analyst analyst." in done.wire.error
    with pytest.raises(JobFailed):
        _ = done.result


def test_only_its_analyst_cancels_a_job(federation: LocalFederation) -> None:
    """Another analyst gets a refusal, and the job goes on."""

    async def work() -> None:
        async with Client(federation.analyst()) as owner, Client(federation.analyst("somebody")) as other:
            job_id = (await owner.submit(Pipeline.model_validate(job([*GOOD, "ghost"], ["age"])))).id
            with pytest.raises(NotAllowed, match="is of analyst analyst, not of somebody"):
                await other.cancel(job_id)
            assert (await owner.get(job_id)).state == "inviting"
            await owner.cancel(job_id)

    run(work)


@pytest.mark.long
def test_a_cancelled_job_waits_for_nobody(federation: LocalFederation) -> None:
    """The site notices while it waits for its person, and there is nothing left to approve."""

    async def start() -> str:
        async with Client(federation.analyst()) as client:
            return (await client.submit(Pipeline.model_validate(job([*GOOD, "manual"], ["age"])))).id

    async def cancel() -> None:
        async with Client(federation.analyst()) as client:
            await client.cancel(job_id)

    job_id = run(start)
    config = config_of(federation, "manual")
    eventually(lambda: approvals_row(federation, job_id), lambda row: row.get("approval") == "pending")
    run(cancel)
    row = eventually(lambda: approvals_row(federation, job_id), lambda row: row["state"] == "failed")
    assert row["sites"] == [*GOOD, "manual"]
    assert not row["waiting"]
    assert "does not wait for approval" in command("approvals", "approve", job_id, "--config", config, expect=2)


def test_submitting_again_finds_the_job(federation: LocalFederation) -> None:
    """The same id and pipeline is the same job; another pipeline under that id is refused."""
    first = submit(federation, job(GOOD, ["age"]), "twice-1")
    again = submit(federation, job(GOOD, ["age"]), "twice-1")
    assert again.wire == first.wire
    with pytest.raises(Equivocation, match="Another job has the id twice-1"):
        submit(federation, job(GOOD, ["chol"]), "twice-1")


def test_an_unknown_job_is_said_to_be_unknown(federation: LocalFederation) -> None:
    """Not an empty answer."""

    async def work() -> None:
        async with Client(federation.analyst()) as client:
            await client.get("nothing")

    with pytest.raises(UnknownJob, match="no job nothing"):
        run(work)


def test_the_command_line(federation: LocalFederation, tmp_path: Path) -> None:
    """Submit, list, show, report, audit, transform, doctor: as a person and as a program."""
    federation.analyst()
    config = str(federation.directory / "analyst" / "analyst.toml")
    pipeline = tmp_path / "p.toml"
    pipeline.write_text('name = "cli"\nsites = ["a", "b", "c"]\n[[steps]]\ncolumns = ["age"]\n')
    done = json.loads(command("submit", str(pipeline), "--config", config, "--format", "json").splitlines()[0])
    assert done["state"] == "done"
    job_id = done["job"]
    assert job_id in command("jobs", "list", "--config", config)
    assert "age" in command("jobs", "show", job_id, "--config", config)
    assert "pooled" in command("jobs", "report", job_id, "--config", config)
    site = config_of(federation, "a")
    assert "chain intact" in command("audit", "verify", "--config", site)
    sent = json.loads(command("audit", "show", "--config", site, "--format", "json"))
    kinds = [entry.get("kind") for entry in sent if entry.get("run", "").startswith(job_id)]
    assert kinds == [
        "Signed", "roster.Confirmation", "mean.MaskedVector", "variance.MaskedVector", "finish.Confirmation", "Outcome",
    ]  # fmt: skip
    results = federation.directory / "a" / "state" / "results" / job_id / "0-zscore.skops"
    table, output = str(federation.directory / "a.csv"), tmp_path / "scaled.csv"
    command("transform", "--estimator", str(results), "--in", table, "--out", str(output))
    scaled = np.loadtxt(output, delimiter=",", skiprows=1)
    own, pooled = np.loadtxt(table, delimiter=",", skiprows=1), pooled_rows(federation, GOOD)
    np.testing.assert_allclose(scaled[:, 0], (own[:, 0] - pooled[:, 0].mean()) / pooled[:, 0].std(), rtol=1e-9)
    np.testing.assert_allclose(scaled[:, 1], own[:, 1], rtol=1e-12)
    for who in (site, config, str(federation.directory / "coordinator" / "coordinator.toml")):
        findings = json.loads(command("doctor", "--config", who, "--format", "json"))
        # These sites allow encryption, and should know what that means.
        warned = {"policy"} if who == site else set()
        assert {finding["check"] for finding in findings if finding["status"] != "ok"} == warned, findings


def test_errors_of_the_command_line_are_one_sentence(federation: LocalFederation, tmp_path: Path) -> None:
    """With an exit code for programs, and no traceback."""
    federation.analyst()
    config = str(federation.directory / "analyst" / "analyst.toml")
    two = tmp_path / "two.toml"
    two.write_text('sites = ["a", "b"]\n[[steps]]\ncolumns = ["age"]\n')
    assert "2 sites are too few" in command("submit", str(two), "--config", config, expect=2)
    refused = tmp_path / "refused.toml"
    refused.write_text('sites = ["a", "b", "narrow"]\n[[steps]]\ncolumns = ["chol"]\n')
    assert "narrow refused" in command("submit", str(refused), "--config", config, expect=3)
    brackets = tmp_path / "brackets.toml"
    brackets.write_text('sites = ["a", "b", "c"]\n[[steps]]\ncolumns = ["lab [mmol]"]\n')
    assert "a has no column 'lab [mmol]'" in command("submit", str(brackets), "--config", config, expect=3)
    coordinator = str(federation.directory / "coordinator" / "coordinator.toml")
    assert "Cannot listen on" in command("coordinator", "--config", coordinator, expect=2)
    assert "Another daemon uses" in command("participant", "--config", config_of(federation, "a"), expect=2)
    bad_url = tmp_path / "coordinator.toml"
    bad_url.write_text(Path(coordinator).read_text().replace("sqlite:///coordinator.db", "no url"))
    assert "database URL is not usable" in command("coordinator", "--config", str(bad_url), expect=2)
    assert "no job nothing" in command("jobs", "show", "nothing", "--config", config, expect=1)
    assert "Cannot read" in command("participant", "--config", str(tmp_path / "none.toml"), expect=2)
    unknown = tmp_path / "unknown.toml"
    unknown.write_text(Path(config_of(federation, "a")).read_text().replace("http_listen", "http_lisen"))
    assert "unknown key 'http_lisen'" in command("participant", "--config", str(unknown), expect=2)
