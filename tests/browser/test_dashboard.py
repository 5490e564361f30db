"""The coordinator's dashboard, in Chromium, over a federation of real processes."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Visitor, assert_sound
from tests.browser.dashboards import SITES, WatchedFederation, command

# Another release at one site, as far as the coordinator can tell.
OLDER = "import commonscale.version as version; version.__version__ = '0.0.9'; from commonscale.cli import main; main()"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFederation]:
    entry = {"north": [sys.executable, "-c", OLDER, "participant"]}
    with WatchedFederation(tmp_path_factory.mktemp("watched"), entry=entry) as running:
        running.keep_dashboard_port()
        yield running


@pytest.fixture(scope="module")
def token(federation: WatchedFederation) -> str:
    return federation.observer("ops")


@pytest.fixture
def visitor(browser: Browser, federation: WatchedFederation) -> Iterator[Visitor]:
    """Whatever a test does: no complaint in the console, nothing blocked by the policy, nothing from elsewhere."""
    someone = Visitor(browser, federation.origin)
    yield someone
    someone.leave()
    assert someone.complaints == []


def log_in(visitor: Visitor, token: str, path: str = "/", **options: object) -> Page:
    page = visitor.open("/login", **options)  # type: ignore[arg-type]
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Federation")
    if path != "/":
        page.goto(visitor.origin + path)
    expect(page.locator("#connection")).to_have_text("Live")
    return page


def test_login_and_logout(visitor: Visitor, token: str) -> None:
    """Strangers see nothing; a wrong token is told; a right one is remembered until logout."""
    visitor.expected = re.compile("401")
    page = visitor.open("/jobs/anything")
    expect(page).to_have_url(visitor.origin + "/login")
    assert_sound(page)
    page.get_by_label("Token").fill("cs_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    assert_sound(page)
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Federation")
    page.reload()
    page.get_by_role("button", name="Log out ops").click()
    expect(page).to_have_url(visitor.origin + "/login")
    page.goto(visitor.origin + "/")
    expect(page).to_have_url(visitor.origin + "/login")


def test_a_session_that_ends_leads_to_the_login(visitor: Visitor, federation: WatchedFederation) -> None:
    """The operator takes the token back: the stream ends and the page says so by itself."""
    visitor.expected = re.compile("401")
    page = log_in(visitor, federation.observer("guest"))
    config = federation.directory / "coordinator" / "coordinator.toml"
    command("observers", "remove", "guest", "--config", str(config))
    expect(page).to_have_url(visitor.origin + "/login")


def test_sites_at_a_glance(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """Online by word, another release, certificates that end; a site that stops is told without a reload."""
    page = log_in(visitor, token)
    expect(page).to_have_title("4 of 4 sites online – commonscale")
    site = {name: page.locator(f"[data-site={name}]") for name in SITES}
    for name in SITES:
        expect(site[name]).to_contain_text("Online")
        expect(site[name].locator("time")).to_have_attribute("title", re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"))
    expect(site["north"]).to_contain_text("0.0.9 differs")
    expect(site["south"]).not_to_contain_text("differs")
    expect(site["east"]).to_contain_text("20 days left")
    expect(site["east"]).to_contain_text("Renew soon")
    expect(site["west"]).to_contain_text("Renew now")
    expect(site["south"]).not_to_contain_text("Renew")
    federation.participants["west"].stop()
    try:
        expect(site["west"]).to_contain_text("Offline")
        expect(page).to_have_title("3 of 4 sites online – commonscale")
        expect(page.locator("#news")).to_contain_text("west is offline")
    finally:
        federation.participants["west"].start()
        federation.participants["west"].wait_ready()
    expect(site["west"]).to_contain_text("Online")


def test_a_job_waits_and_goes_on(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """The site that is awaited is named, with a clock that runs; then, without a reload, every round until the end."""
    job_id = federation.submit(name="waits", sites=SITES)
    page = log_in(visitor, token)
    row = page.locator(f"[data-job={job_id}]")
    expect(row).to_contain_text(re.compile(r"south awaited in Signed since \d+ s"))
    row.get_by_role("link", name="waits").click()
    expect(page.get_by_text("Waiting for south")).to_be_visible()
    expect(page).to_have_title("Waits for south – waits – commonscale")
    clock = page.locator(".awaited-list time")
    before = int((clock.text_content() or "").split()[0])
    expect(clock).to_have_text(f"{before + 2} s")
    expect(page.locator(".waits text")).to_have_text(re.compile(r"awaited \d+ s"))
    expect(page.locator("td[data-awaited]")).to_have_text(re.compile(r"awaited \d+ s"))
    # Focus and scroll position survive what comes.
    zoom = page.get_by_role("button", name="Zoom in")
    zoom.focus()
    federation.decide(job_id, "approved")
    expect(page.locator(".job-title .badge")).to_have_text("Done")
    expect(zoom).to_be_focused()
    expect(page).to_have_title("Done – waits – commonscale")
    expect(page.locator(".awaited")).to_be_hidden()
    expect(page.locator("#news")).to_contain_text("The job is done")
    for kind in ("Signed", "Roster", "mean.MaskedVector", "variance.Total", "Outcome"):
        expect(page.locator(".rounds").get_by_role("rowheader", name=kind, exact=False).first).to_be_visible()
    assert page.locator(".mark-at").count() == sum(
        len(one["senders"]) for one in page.request.get(f"{visitor.origin}/api/jobs/{job_id}").json()["rounds"]
    )


def test_costs_and_disclosures(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """Bytes and seconds of each protocol with their units; who learned what."""
    job_id = federation.submit(
        name="told", steps=[{"columns": ["age", "lab_potassium"]}, {"transform": "robust", "columns": ["age"]}]
    )
    page = log_in(visitor, token, f"/jobs/{job_id}")
    expect(page.locator(".job-title .badge")).to_have_text("Done")
    costs = page.get_by_role("table").filter(has_text="Protocol")
    for protocol in ("admission", "zscore/masks", "robust/masks", "outcome"):
        row = costs.get_by_role("row").filter(has=page.get_by_role("rowheader", name=protocol))
        expect(row).to_have_text(re.compile(r"\d (B|kB|MB)\d.* (ms|s)$"))
    row = page.locator(".disclosures tbody tr").filter(has_text="pooled variance of each column")
    expect(row).to_contain_text("age, lab_potassium")
    expect(row.get_by_role("listitem")).to_have_text(["coordinator", "analyst", "north", "east", "west"])


def test_a_refusal_is_explained(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """The reason, and what to do about it, on the job's page and in the log."""
    job_id = federation.submit(name="refused", steps=[{"columns": ["lab_creatinine"]}])
    page = log_in(visitor, token, f"/jobs/{job_id}")
    expect(page.locator(".job-title .badge")).to_have_text("Refused")
    expect(page.locator("[data-part=error]")).to_have_text(
        "east refused: Its policy does not allow the column 'lab_creatinine', of which step 0 (zscore) asks for "
        "counts, sums and sums of squares."
    )
    expect(page.locator("[data-part=remedy]")).to_have_text(
        re.compile("What to do: That site decides: ask its operator")
    )
    page.get_by_role("link", name="All jobs").click()
    entry = page.locator(".incidents tbody tr").filter(has_text=job_id)
    expect(entry).to_contain_text("What to do: That site decides")
    entry.get_by_role("link").click()
    expect(page).to_have_url(f"{visitor.origin}/jobs/{job_id}")


def test_a_failure_is_explained(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """A missed deadline names who was awaited."""
    job_id = federation.submit(name="late", sites=SITES, deadline_s=3)
    page = log_in(visitor, token, f"/jobs/{job_id}")
    expect(page.locator(".job-title .badge")).to_have_text("Failed")
    expect(page.locator("[data-part=error]")).to_have_text(
        re.compile(r"^The deadline passed while south was awaited in round Signed\.\s*$")
    )
    expect(page.locator("[data-part=remedy]")).to_have_text("What to do: Check that daemon, then submit the job again.")
    expect(page.locator(".steps")).to_contain_text("not reached")


def test_words_of_others_stay_words(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """A reason with markup in it is shown as it is, and does nothing."""
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    job_id = federation.submit(name="markup", sites=SITES)
    federation.decide(job_id, "refused", evil)
    page = log_in(visitor, token)
    expect(page.locator(f"[data-job={job_id}]")).to_contain_text(evil)
    expect(page.locator(".incidents tbody tr").filter(has_text=job_id)).to_contain_text(evil)
    page.goto(f"{visitor.origin}/jobs/{job_id}")
    expect(page.locator("[data-part=error]")).to_contain_text(evil)
    assert page.locator("main img, main script").count() == 0
    expect(page).to_have_title("Refused – markup – commonscale")


def test_a_job_that_is_not_there(visitor: Visitor, token: str) -> None:
    """A wrong address says so and leads back."""
    visitor.expected = re.compile("404")
    page = log_in(visitor, token)
    page.goto(visitor.origin + "/jobs/no-such-job")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such job")
    page.get_by_role("link", name="All jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Federation")


def test_the_filter(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """Jobs by state and by words; a job's page and back keeps the choice."""
    kept = federation.submit(name="to-find")
    page = log_in(visitor, token)
    expect(page.locator(f"[data-job={kept}]")).to_contain_text("Done")
    page.get_by_role("button", name="Done").click()
    page.get_by_label("Find jobs").fill("to-find mona west")
    expect(page.locator(".jobs tbody tr")).to_have_count(1)
    page.get_by_role("link", name="to-find").click()
    expect(page.locator(".job-title")).to_contain_text("to-find")
    page.go_back()
    expect(page.locator(".jobs tbody tr")).to_have_count(1)
    expect(page.get_by_role("button", name="Done")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_text("No job fits the filter.")).to_be_visible()


def test_the_stream_survives_a_restart(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """The coordinator is killed and comes back: the page says so, reconnects by itself and shows what is new."""
    visitor.expected = re.compile("ERR_|Failed to load resource")
    page = log_in(visitor, token)
    federation.coordinator.kill()
    try:
        expect(page.locator("#connection")).to_have_text("Reconnecting")
        expect(page.locator("[data-site=north]")).to_be_visible()
    finally:
        federation.coordinator.start()
        federation.coordinator.wait_ready()
    expect(page.locator("#connection")).to_have_text("Live")
    job_id = federation.submit(name="after")
    expect(page.locator(f"[data-job={job_id}]")).to_contain_text("Done")


def test_half_a_page_is_loaded_again(visitor: Visitor, token: str) -> None:
    """The line breaks while the page loads: it comes up all the same, a moment later."""
    visitor.expected = re.compile("ERR_FAILED")
    page = log_in(visitor, token)
    page.route("**/static/timeline.js", lambda route: route.abort(), times=1)
    page.reload()
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("[data-site=north]")).to_be_visible()


@pytest.mark.parametrize("width", [1280, 400])
def test_every_view_is_sound(visitor: Visitor, federation: WatchedFederation, token: str, width: int) -> None:
    """Nothing wider than the window, every control named, tables captioned, text readable, in both themes."""
    waiting = federation.submit(name="sound", sites=SITES)
    page = log_in(visitor, token, width=width)
    expect(page.locator(f"[data-job={waiting}]")).to_contain_text("south awaited")
    rows = page.request.get(visitor.origin + "/api/overview").json()["jobs"]
    by_state = {row["state"]: row["id"] for row in reversed(rows)}
    for path in ["/", *(f"/jobs/{job_id}" for job_id in by_state.values())]:
        page.goto(visitor.origin + path)
        expect(page.locator("#connection")).to_have_text("Live")
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            assert_sound(page)
    federation.decide(waiting, "refused")


def many_rounds(sites: int, rounds: int) -> dict[str, Any]:
    """A job in its second step, as the dashboard is told of it."""
    names = [f"site-{number}" for number in range(sites)]
    at_ms = int(time.time() * 1000) - 60_000
    job: dict[str, Any] = {
        "id": "big", "name": "big", "state": "running", "analyst": "mona", "sites": names, "dataset": "main",
        "submitted_at_ms": at_ms, "deadline_at_ms": at_ms + 600_000, "ended_at_ms": None, "error": "",
        "now_ms": at_ms + 60_000, "visitor": "ops", "progress": None, "protocols": [], "disclosures": [], "rounds": [],
        "coordinator": {"name": "coordinator"}, "remedy": "",
        "steps": [{"number": n, "transform": "robust", "protocol": "robust", "columns": ["age"]} for n in range(2)],
    }  # fmt: skip
    for number in range(rounds):
        senders = {name: {"at_ms": at_ms + 40 * number + 3 * place, "bytes": 70} for place, name in enumerate(names)}
        if number == rounds - 1:
            del senders["site-0"]
        job["rounds"].append({
            "step": 2 * number // rounds, "kind": f"search.{number}.MaskedVector", "direction": "to-coordinator",
            "first_ms": min(sent["at_ms"] for sent in senders.values()), "last_ms": at_ms + 40 * number + 3 * sites,
            "messages": len(senders), "bytes": 70 * len(senders), "senders": senders,
        })  # fmt: skip
    wait = {"step": 1, "kind": f"search.{rounds - 1}.MaskedVector", "site": "site-0", "since_ms": at_ms + 40 * rounds}
    return job | {"awaiting": [wait]}


@pytest.mark.parametrize("width", [1280, 400])
def test_hundreds_of_rounds_stay_readable(visitor: Visitor, token: str, width: int) -> None:
    """Ten sites, 400 rounds: quickly drawn, only the newest step unfolded, more names the closer one looks."""
    page = log_in(visitor, token, width=width)
    event = f"event: job\ndata: {json.dumps(many_rounds(10, 400))}\n\n"
    page.route("**/api/jobs/big/events", lambda route: route.fulfill(body=event, content_type="text/event-stream"))
    page.goto(visitor.origin + "/jobs/big")
    expect(page.locator(".mark-at")).to_have_count(3999)
    expect(page.locator(".rounds tbody tr")).to_have_count(202)
    expect(page.locator(".waits text")).to_have_text(re.compile(r"awaited \d+ s"))
    names = page.locator(".names text").count()
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
    assert page.locator(".names text").count() > 2 * names
    assert page.locator(".track").evaluate("node => node.scrollWidth > 4 * node.clientWidth")
    page.get_by_role("button", name="Fit").click()
    page.get_by_role("button", name="Step 0: robust").click()
    expect(page.locator(".rounds tbody tr")).to_have_count(402)
    assert_sound(page)


def test_the_theme_is_remembered(visitor: Visitor, token: str) -> None:
    """The button goes round automatic, light and dark; a reload keeps it."""
    page = log_in(visitor, token, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    button = page.get_by_role("button", name="Theme")
    expect(button).to_have_text("Theme: auto")
    button.click()
    button.click()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(ground) != light
    page.reload()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(ground) != light


def test_by_keyboard_alone(visitor: Visitor, federation: WatchedFederation, token: str) -> None:
    """Past the bar by the skip link, to a job by Tab and Enter, through its page, and every stop can be seen."""
    federation.submit(name="keys")
    page = log_in(visitor, token)
    expect(page.locator(".jobs tbody tr").first).to_contain_text("Done")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    walked = walk(page, until=lambda text: text == "keys")
    assert [stop.split()[0] for stop in walked[:3]] == ["All", "Open", "Done"]
    page.keyboard.press("Enter")
    expect(page.locator(".job-title .badge")).to_have_text("Done")
    walked = walk(page, until=lambda text: text.startswith("Outcome"))
    for stop in (
        "Skip to the content",
        "All jobs",
        "True scale",
        "Fit",
        "Zoom in",
        "Timeline, scrolls sideways",
        "Rounds",
    ):
        assert stop in walked, (stop, walked)
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Outcome")).to_have_attribute("aria-expanded", "false")


def walk(page: Page, until: Callable[[str], bool]) -> list[str]:
    """Press Tab until a stop; the names of all stops, each of which must show that it has the focus."""
    stops: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, seen = page.evaluate(
            """() => {
              const node = document.activeElement;
              const by = document.getElementById(node.getAttribute("aria-labelledby"));
              const style = getComputedStyle(node);
              return [(by?.textContent ?? node.getAttribute("aria-label") ?? node.textContent).trim(),
                      style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
            }"""
        )
        assert seen, name
        stops.append(name)
        if until(name):
            return stops
    raise AssertionError(stops)
