"""The site's page, in Chromium, over a federation of real processes. One site asks a person for every job."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from commonscale import config
from commonscale.client import Client, Job
from commonscale.config import ParticipantConfig
from commonscale.localnet import ENCRYPTION, LocalFederation
from commonscale.pipeline import Pipeline
from participant import approvals
from participant.journal import SiteJobs, open_database
from tests.browser.conftest import Visitor, aside, assert_sound
from tests.e2e.conftest import run
from tests.patience import eventually

SITES = ["north", "south", "east", "west"]
LABS = [f"lab_{number}" for number in range(1, 46)]
COLUMNS = ["age", "systolic", "creatinine", "ward", "smoker", "lab_*"]
RENAL_RISK: list[dict[str, Any]] = [
    {"columns": ["age", "creatinine"]},
    {"transform": "minmax", "columns": ["systolic"], "method": "tree"},
    {"transform": "onehot", "columns": ["ward", "smoker"]},
]
# With COMMONSCALE_PICTURES set, the documentation's pictures are made anew.
PICTURES = Path(__file__).parents[2] / "docs" / "images"


def write_table(path: Path, site: str, generator: np.random.Generator) -> Path:
    rows = [",".join(["age", "systolic", "creatinine", "ward", "smoker", *LABS])]
    labs = ",1.5" * len(LABS)
    for _ in range(120):
        age, pressure, creatinine = generator.normal(61, 12), generator.normal(131, 17), generator.lognormal(0, 0.3)
        ward = generator.choice(["icu", "surgery", "medicine", f"{site}-annex"])
        rows.append(f"{age:.1f},{pressure:.0f},{creatinine:.3f},{ward},{generator.choice(['yes', 'no'])}{labs}")
    path.write_text("\n".join(rows) + "\n")
    return path


class Hospital(LocalFederation):
    """A federation, and what an analyst does in it while somebody is at the page of the site north."""

    @property
    def state(self) -> Path:
        return self.directory / "north" / "state"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{json.loads(self.participants['north'].ready_path.read_text())['page_port']}"

    @property
    def token(self) -> str:
        return (self.state / "page.token").read_text().strip()

    def submit(self, name: str, *steps: dict[str, Any], sites: list[str] = SITES, deadline_s: int = 600) -> str:
        content = {"name": name, "sites": sites, "deadline_s": deadline_s, "steps": list(steps)}

        async def work() -> str:
            async with Client(self.analyst("mona")) as client:
                return (await client.submit(Pipeline.model_validate(content))).id

        return aside(lambda: run(work))

    def wait(self, job_id: str) -> Job:
        async def work() -> Job:
            async with Client(self.analyst("mona")) as client:
                return await client.wait(job_id)

        return aside(lambda: run(work))

    def approve(self, job_id: str) -> None:
        """What `commonscale approvals approve` does, once the site asks."""
        settings = config.load(ParticipantConfig, self.directory / "north" / "participant.toml")
        database = open_database(settings)
        eventually(lambda: any(job.id == job_id and job.waiting for job in SiteJobs(database).all()))
        approvals.decide(SiteJobs(database), job_id, "approved", "", "command")
        database.close()
        assert self.wait(job_id).state == "done"

    def cancel(self, job_id: str) -> None:
        async def work() -> None:
            async with Client(self.analyst("mona")) as client:
                await client.cancel(job_id)

        aside(lambda: run(work))


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospital]:
    directory = tmp_path_factory.mktemp("hospital")
    generator = np.random.default_rng(5)
    data = {site: write_table(directory / f"{site}.csv", site, generator) for site in SITES}
    policies = {site: {"methods": ENCRYPTION["methods"]} for site in SITES}
    policies["north"] |= {"approval": "manual", "columns": COLUMNS}
    with Hospital(directory, data, policies=policies) as running:
        yield running


@pytest.fixture(scope="module")
def history(hospital: Hospital) -> None:
    """Two jobs that are done, one of them without the site west."""
    hospital.approve(hospital.submit("renal-baseline", {"columns": ["age", "creatinine"]}, sites=SITES[:3]))
    hospital.approve(
        hospital.submit("vital-signs", {"transform": "robust", "columns": ["systolic"], "method": "shares"})
    )


@pytest.fixture
def visitor(browser: Browser, hospital: Hospital) -> Iterator[Visitor]:
    """Whatever a test does: no complaint in the console, nothing blocked by the policy, nothing from elsewhere."""
    someone = Visitor(browser, hospital.origin)
    yield someone
    someone.leave()
    assert someone.complaints == []


def log_in(visitor: Visitor, hospital: Hospital, **options: Any) -> Page:
    page = visitor.open("/", **options)
    expect(page).to_have_url(visitor.origin + "/login")
    page.get_by_label("Token").fill(hospital.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#stream")).to_have_text("Live")
    expect(page.get_by_role("heading", level=1)).to_have_text("Site north")
    return page


def card(page: Page, job_id: str) -> Locator:
    return page.locator(f"#ask-{job_id}")


def test_strangers_are_sent_to_the_login(visitor: Visitor, hospital: Hospital) -> None:
    """A wrong token is told; logging out ends it."""
    visitor.expected = re.compile("401")
    page = visitor.open("/")
    expect(page).to_have_url(visitor.origin + "/login")
    expect(page.get_by_role("heading", level=1)).to_have_text("site north")
    page.get_by_label("Token").fill("cs_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    page.get_by_label("Token").fill(hospital.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Site north")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(visitor.origin + "/login")
    page.goto(visitor.origin + "/")
    expect(page).to_have_url(visitor.origin + "/login")


def test_a_job_is_approved(visitor: Visitor, hospital: Hospital) -> None:
    """It appears by itself with all that it asks for; approved, it runs, and its traces are on the page."""
    page = log_in(visitor, hospital)
    expect(page.get_by_text("No job waits.")).to_be_visible()
    for words in ("rolling-hash", "masks, shares, ckks", "lab_*"):
        expect(page.locator("#policy")).to_contain_text(words)
    expect(page.locator("#policy")).not_to_contain_text("bytes-norm")
    job_id = hospital.submit("renal-risk", RENAL_RISK[0], {"transform": "onehot", "columns": ["ward"]})
    ask = card(page, job_id)
    for words in ("mona", "main", "south, east, west", "age, creatinine", "protocol onehot/oprf", "pooled variance"):
        expect(ask).to_contain_text(words)
    expect(ask).to_contain_text("asks the rows for counts, sums and sums of squares; deviations and squared deviations")
    expect(ask).to_contain_text("asks the rows for different values and how often each occurs")
    expect(ask.get_by_text("may be opened")).to_have_count(0)
    expect(ask.get_by_text(re.compile(r"\d+ min \d+ s left"))).to_be_visible()
    expect(page).to_have_title(re.compile(r"^\(1\) site north"))
    assert_sound(page)
    ask.get_by_role("button", name="Approve renal-risk").click()
    expect(page.locator("#decided")).to_contain_text(f"renal-risk ({job_id}) was approved")
    expect(page.get_by_text("No job waits.")).to_be_visible()
    expect(page.locator("#waiting-title")).to_be_focused()
    assert hospital.wait(job_id).state == "done"
    row = page.locator(".job", has_text=job_id)
    expect(row.locator(".badge")).to_have_text("done")
    row.locator("summary").click()
    expect(row.get_by_role("table")).to_have_count(2)
    expect(row).to_contain_text("Approved on this page")
    expect(row).to_contain_text("sealed to south")
    expect(row).to_contain_text("how many values of each column exactly these sites have in common")
    expect(page.locator("#lines tr", has_text="approved (page)")).to_have_count(1)
    assert_sound(page)


def test_what_only_may_be_opened_is_marked(visitor: Visitor, hospital: Hospital) -> None:
    """One round of a z-score opens a variance by itself where squares cost digits; a rolling hash asks for nothing."""
    page = log_in(visitor, hospital)
    hashed = {"transform": "rolling-hash", "columns": ["ward"]}
    job_id = hospital.submit("in-one-round", {"columns": ["age"], "rounds": "one"}, hashed)
    ask = card(page, job_id)
    row = ask.get_by_role("row").filter(has_text="pooled variance of each column")
    expect(row).to_contain_text("(may be opened)")
    expect(ask.get_by_text("(may be opened)")).to_have_count(1)
    expect(ask).to_contain_text("asks nothing of the rows")
    expect(ask).to_contain_text("pools nothing")
    assert_sound(page)
    hospital.cancel(job_id)
    expect(ask).to_have_count(0)


def test_a_job_is_refused_with_a_reason(visitor: Visitor, hospital: Hospital) -> None:
    """Without one nothing happens; with it, the analyst reads it, and markup in it is text."""
    page = log_in(visitor, hospital)
    job_id = hospital.submit("smoking", {"transform": "ordinal", "columns": ["smoker"]})
    ask = card(page, job_id)
    ask.get_by_role("button", name="Refuse smoking").click()
    expect(ask.get_by_role("alert")).to_have_text("Say why: the analyst sees the reason.")
    expect(ask.get_by_label("Reason")).to_be_focused()
    ask.get_by_label("Reason").fill("Not covered by <b>our</b> consent forms.")
    ask.get_by_role("button", name="Refuse smoking").click()
    expect(page.locator("#decided")).to_contain_text("was refused")
    ended = hospital.wait(job_id)
    assert ended.state == "refused"
    assert "north refused: Not covered by <b>our</b> consent forms." in ended.wire.error
    expect(
        page.locator("#lines tr", has_text="refused (page): “Not covered by <b>our</b> consent forms.”")
    ).to_have_count(1)


def test_by_keyboard_alone(visitor: Visitor, hospital: Hospital) -> None:
    """Skip link, reason, refuse: every stop can be seen."""
    job_id = hospital.submit("keys", {"columns": ["age"]})
    page = log_in(visitor, hospital)
    expect(card(page, job_id)).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(card(page, job_id).get_by_label("Reason")).to_be_focused()
    page.keyboard.type("not now")
    page.keyboard.press("Tab")
    expect(card(page, job_id).get_by_role("button", name="Approve keys")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#decided")).to_contain_text("was refused")
    assert "not now" in hospital.wait(job_id).wire.error


def test_a_half_typed_reason_survives(visitor: Visitor, hospital: Hospital) -> None:
    """Other jobs come and go, messages are counted; the card, its focus and its text stay as they are."""
    first = hospital.submit("first", {"columns": ["age"]})
    page = log_in(visitor, hospital)
    reason = card(page, first).get_by_label("Reason")
    reason.click()
    page.keyboard.type("We have not ye")
    second = hospital.submit("second", {"columns": ["systolic"]})
    card(page, second).get_by_role("button", name="Approve second").wait_for()
    page.evaluate(f"fetch('/api/jobs/{second}/approve', {{method: 'POST'}})")
    hospital.wait(second)
    expect(page.locator(".job", has_text=second).locator(".badge")).to_have_text("done")
    expect(reason).to_be_focused()
    page.keyboard.type("t asked")
    assert reason.input_value() == "We have not yet asked"
    hospital.cancel(first)
    expect(page.locator("#decided")).to_contain_text("nobody decided on it")
    expect(page.locator("#waiting-title")).to_be_focused()


def test_two_people_see_one_decision(visitor: Visitor, hospital: Hospital) -> None:
    """One refuses while the other's approval is on its way: the card goes from both pages, and both say the same."""
    visitor.expected = re.compile("409")
    job_id = hospital.submit("shared", {"columns": ["age"]})
    one, two = log_in(visitor, hospital), log_in(visitor, hospital)
    held: list[Route] = []
    two.route("**/approve", lambda route: held.append(route))  # noqa: PLW0108 - Playwright counts its arguments
    card(two, job_id).get_by_role("button", name="Approve shared").click()
    card(one, job_id).get_by_label("Reason").fill("no")
    card(one, job_id).get_by_role("button", name="Refuse shared").click()
    expect(one.locator("#decided")).to_contain_text("was refused")
    with two.expect_response("**/approve") as late:
        held[0].continue_()
    assert late.value.status == 409
    assert late.value.json()["error"].endswith("it was refused already by page.")
    expect(two.locator("#decided")).to_contain_text("was refused")
    expect(card(two, job_id)).to_have_count(0)
    assert hospital.wait(job_id).state == "refused"


def test_the_chain_is_verified(visitor: Visitor, hospital: Hospital) -> None:
    """Intact, then broken by one byte, then intact again."""
    page = log_in(visitor, hospital)
    page.get_by_role("button", name="Verify the chain").click()
    expect(page.locator("#verified")).to_contain_text(re.compile(r"intact: \d+ lines.*Last hash [0-9a-f]{64}"))
    path = hospital.state / "audit.jsonl"
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.write(whole.replace(b'"sealed": false', b'"sealed": true ', 1))
    try:
        page.get_by_role("button", name="Verify the chain").click()
        expect(page.locator("#verified")).to_contain_text("is broken at line")
        assert_sound(page)
    finally:
        with path.open("r+b") as file:
            file.write(whole)
    page.get_by_role("button", name="Verify the chain").click()
    expect(page.locator("#verified")).to_contain_text("intact")


def test_a_long_log_and_many_columns(visitor: Visitor, hospital: Hospital) -> None:
    """Older lines come on demand, each once; a long list of columns opens on demand."""
    page = log_in(visitor, hospital)
    job_id = hospital.submit("many", {"columns": LABS}, *({"columns": ["age"], "method": "shares"} for _ in range(9)))
    ask = card(page, job_id)
    expect(ask).to_contain_text("and 5 more columns")
    expect(ask.get_by_text("lab_45")).to_be_hidden()
    ask.get_by_text("and 5 more columns").click()
    expect(ask.get_by_text("lab_45")).to_be_visible()
    ask.get_by_role("button", name="Approve many").click()
    assert hospital.wait(job_id).state == "done"
    lines = len((hospital.state / "audit.jsonl").read_text().splitlines())
    assert lines > 100
    newest = page.locator("#lines tr").first.locator("td").first
    expect(newest).to_have_text(f"{lines:,}")
    older = page.get_by_role("button", name="Older lines")
    while older.is_visible():
        before = page.locator("#lines tr").count()
        older.click()
        expect(page.locator("#lines tr").nth(before)).to_be_attached()
    numbers = [int(text.replace(",", "")) for text in page.locator("#lines tr td:first-child").all_text_contents()]
    assert numbers == list(range(lines, 0, -1))
    with page.expect_download() as download:
        page.get_by_role("link", name="What left, as CSV").click()
    assert download.value.suggested_filename == "left-north.csv"


def test_a_session_that_ends_leads_to_the_login(visitor: Visitor, hospital: Hospital) -> None:
    """Another token ends it, within seconds."""
    visitor.expected = re.compile("401")
    page = log_in(visitor, hospital)
    old = hospital.token
    (hospital.state / "page.token").write_text("cs_another\n")
    try:
        expect(page).to_have_url(visitor.origin + "/login", timeout=30_000)
    finally:
        (hospital.state / "page.token").write_text(f"{old}\n")


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 400, "light")]
)
def test_it_fits_and_can_be_read(
    visitor: Visitor, hospital: Hospital, history: None, name: str, width: int, scheme: str
) -> None:
    """Wide and narrow, light and dark, with a job that waits and one that is open; no sideways scrolling."""
    job_id = hospital.submit("renal-risk", *RENAL_RISK, deadline_s=1800)
    page = log_in(visitor, hospital, width=width, height=1240 if width > 400 else 900, color_scheme=scheme)
    expect(card(page, job_id)).to_contain_text("trusts the coordinator")
    expect(card(page, job_id)).to_contain_text("differs by west only")
    page.locator(".job", has_text="vital-signs").first.locator("summary").click()
    expect(page.locator(".job[open] table")).to_have_count(2)
    assert_sound(page)
    if os.environ.get("COMMONSCALE_PICTURES"):
        page.evaluate("document.activeElement.blur()")
        page.locator("#jobs-title" if name == "dark" else "#site").evaluate("node => scrollTo(0, node.offsetTop - 80)")
        page.screenshot(path=PICTURES / f"site-page-{name}.png")
    card(page, job_id).get_by_label("Reason").fill("That was for the picture.")
    card(page, job_id).get_by_role("button", name="Refuse renal-risk").click()
    hospital.wait(job_id)
