"""The live view of training, in Chromium: the dashboard, and the page of a site with its worker."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Visitor, assert_sound
from tests.browser.trainings import TrainingFederation
from tests.patience import eventually

# What a page is told over its stream at first.
FIRST_EVENT = """async (path) => {
  const reader = (await fetch(path)).body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (!text.includes("\\n\\n")) text += decoder.decode((await reader.read()).value, { stream: true });
  await reader.cancel();
  return text;
}"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingFederation]:
    with TrainingFederation(tmp_path_factory.mktemp("trained")) as running:
        running.keep_dashboard_port()
        yield running


@pytest.fixture(scope="module")
def token(federation: TrainingFederation) -> str:
    return federation.observer("ops")


@pytest.fixture
def visitor(browser: Browser, federation: TrainingFederation) -> Iterator[Visitor]:
    """Whatever a test does: no complaint in the console, nothing blocked by the policy, nothing from elsewhere."""
    someone = Visitor(browser, federation.origin)
    yield someone
    someone.leave()
    assert someone.complaints == []


def look_at(visitor: Visitor, token: str, path: str, **options: object) -> Page:
    page = visitor.open("/login", **options)  # type: ignore[arg-type]
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.goto(visitor.origin + path)
    return page


def test_a_training_shows_its_round_and_curves(visitor: Visitor, federation: TrainingFederation, token: str) -> None:
    """Round by round without a reload: who is awaited, seconds, bytes, three curves and the same as a table."""
    federation.hold("west", 8)
    job_id = federation.train("readmission", rounds=12, observers=True)
    page = look_at(visitor, token, f"/jobs/{job_id}")
    panel = page.locator("[data-part=training]")
    expect(panel).to_contain_text("8 of 12")
    expect(panel).to_contain_text("model readmission")
    for words in ("A round takes", "The last took", "Bytes a round", "Bytes so far"):
        expect(panel.get_by_text(words)).to_be_visible()
    expect(panel.locator("dd").last).to_have_text("west")
    expect(panel.locator(".curve")).to_have_count(3)
    for name in ("Loss", "Accuracy", "Area under the ROC curve"):
        drawn = panel.get_by_role(
            "img", name=re.compile(f"^{name}, from [0-9.]+ after round 1 to [0-9.]+ after round 7")
        )
        expect(drawn).to_be_visible()
        assert drawn.locator(".line").get_attribute("d")
    expect(page.locator(".awaited-list")).to_contain_text("update.MaskedVectorof step 1, round 8, since")
    panel.get_by_text("The figures as a table").click()
    expect(panel.locator(".figures tbody tr")).to_have_count(7)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        assert_sound(page)
    page.set_viewport_size({"width": 400, "height": 900})
    assert_sound(page)
    federation.let_go("west")
    expect(page.locator(".job-title .badge")).to_have_text("Done")
    expect(panel).to_contain_text("all 12 done")
    expect(panel.locator(".figures tbody tr")).to_have_count(12)
    expect(page.locator("[data-part=disclosures]")).to_contain_text("observers")


def test_rounds_of_a_session_are_told_apart(visitor: Visitor, federation: TrainingFederation, token: str) -> None:
    """The round that runs by itself, those before it added up, none of them late; the list of jobs says which."""
    federation.hold("west", 6)
    job_id = federation.train("told-apart", rounds=9)
    page = look_at(visitor, token, f"/jobs/{job_id}")
    rounds = page.locator(".rounds")
    before = rounds.get_by_role("button", name="Step 1: train, rounds 1 to 5")
    expect(before).to_be_visible()
    expect(rounds.get_by_role("button", name="Step 1: train, round 6 of 9")).to_be_visible()
    expect(rounds.locator("[data-round='1 before/update.MaskedVector/to-coordinator'] .party").last).to_have_text(
        re.compile(r"^[0-9.]+ k?B$")
    )
    expect(rounds.locator("[data-round^='1 before'] td[data-late]")).to_have_count(0)
    expect(rounds.locator("[data-round^='1 now'] td[data-awaited]")).to_have_text(re.compile("awaited"))
    expect(page.locator(".titles")).to_contain_text("rounds 1 to 5")
    page.goto(visitor.origin)
    expect(page.locator(f"[data-job={job_id}]")).to_contain_text(
        re.compile(r"west awaited in round 6 of 9 since \d+ s")
    )
    federation.let_go("west")
    expect(page.locator(f"[data-job={job_id}]")).to_contain_text("Done")


def test_without_leave_observers_see_no_figure(visitor: Visitor, federation: TrainingFederation, token: str) -> None:
    """Neither on the page nor in what it fetches; the analyst sees them, another analyst does not."""
    federation.hold("west", 5)
    job_id = federation.train("private", rounds=6)
    page = look_at(visitor, token, f"/jobs/{job_id}")
    panel = page.locator("[data-part=training]")
    expect(panel).to_contain_text("5 of 6")
    expect(panel).to_contain_text("does not show its figures to observers")
    training = federation.job(job_id).training
    assert training is not None
    assert [one["round"] for one in training["figures"]] == [1, 2, 3, 4]
    others = federation.job(job_id, analyst="other").training
    assert others is not None
    assert (others["done"], others["figures"]) == (4, [])
    fetched = [page.request.get(visitor.origin + path).text() for path in (f"/api/jobs/{job_id}", "/api/overview")]
    fetched += [page.evaluate(FIRST_EVENT, f"/api/jobs/{job_id}/events"), page.content()]
    for one in training["figures"]:
        # As many digits as any way of writing it begins with.
        assert not [text for text in fetched if f"{one['loss']:.4f}" in text or f"{one['auc']:.3f}" in text]
    assert '"figures": []' in fetched[0].replace('":[', '": [')
    expect(panel.locator(".curve, .figures tr td")).to_have_count(0)
    federation.let_go("west")
    assert federation.job(job_id, wait=True).state == "done"
    expect(panel).to_contain_text("all 6 done")
    expect(panel.locator(".curve")).to_have_count(0)


def test_curves_survive_a_restart(visitor: Visitor, federation: TrainingFederation, token: str) -> None:
    """The coordinator is killed in mid-training: the same curves are there again, from its last checkpoint."""
    visitor.expected = re.compile("ERR_|network error")
    federation.hold("west", 5)
    job_id = federation.train("restarted", rounds=6, observers=True)
    page = look_at(visitor, token, f"/jobs/{job_id}")
    loss = page.locator("[data-figure=loss]")
    expect(page.locator("[data-part=training]")).to_contain_text("5 of 6")
    before = loss.get_by_role("img").get_attribute("aria-label")
    federation.coordinator.kill()
    expect(page.locator("#connection")).to_have_text("Reconnecting")
    federation.coordinator.start()
    federation.coordinator.wait_ready()
    page.reload()
    expect(loss.get_by_role("img")).to_have_attribute("aria-label", before or "")
    federation.let_go("west")
    expect(page.locator(".job-title .badge")).to_have_text("Done")


def test_a_site_sees_its_worker(browser: Browser, federation: TrainingFederation) -> None:
    """What it offers and works on, and how far it is; that it is gone, and back."""
    visitor = Visitor(browser, federation.site_origin("west"))
    page = look_at(visitor, federation.site_token("west"), "/")
    card = page.locator("#worker")
    expect(card.locator(".badge")).to_have_text("Attached, waits for work")
    expect(card).to_contain_text("Runs commonscale-worker")
    expect(card.get_by_role("row").filter(has_text="readmission")).to_contain_text("pinned")
    expect(card.get_by_role("row").filter(has_text="readmission")).to_contain_text(re.compile("[0-9a-f]{64}"))
    federation.hold("west", 3)
    job_id = federation.train("looked-at", rounds=4)
    expect(card.locator(".badge")).to_have_text("Attached, at work")
    expect(card).to_contain_text("readmission: trains, round 3 of 4")
    expect(card).to_contain_text("37 %")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        assert_sound(page)
    page.set_viewport_size({"width": 400, "height": 900})
    assert_sound(page)
    federation.let_go("west")
    assert federation.job(job_id, wait=True).state == "done"
    expect(card.locator(".badge")).to_have_text("Attached, waits for work")
    federation.workers["west"].stop()
    expect(card.locator(".badge")).to_have_text("Not attached")
    assert_sound(page)
    federation.workers["west"].start()
    expect(card.locator(".badge")).to_have_text("Attached, waits for work")
    visitor.leave()
    assert visitor.complaints == []


def test_the_last_error_is_for_the_sites_own_eyes(
    visitor: Visitor, browser: Browser, federation: TrainingFederation, token: str
) -> None:
    """As text, on the site's page; the coordinator, its dashboard and the analyst hear one word of a list."""
    job = federation.fail("could not convert 'Miller, born 1949 <img src=x onerror=alert(1)>' to a number")
    assert job.state == "failed"
    assert "could not go on" in job.wire.error
    failed = job.wire.error.split(" failed with")[0]
    inside = Visitor(browser, federation.site_origin(failed))
    page = look_at(inside, federation.site_token(failed), "/")
    card = page.locator("#worker")
    expect(card.get_by_role("heading", name="Last error")).to_be_visible()
    expect(card).to_contain_text("Miller, born 1949 <img src=x onerror=alert(1)>")
    assert page.locator("#worker img").count() == 0
    assert_sound(page)
    inside.leave()
    assert inside.complaints == []
    outside = look_at(visitor, token, f"/jobs/{job.id}")
    expect(outside.locator(".job-title .badge")).to_have_text("Failed")
    told = eventually(lambda: outside.request.get(f"{visitor.origin}/api/jobs/{job.id}").text())
    assert "Miller" not in told + outside.content() + str(job.wire)
    database = (federation.directory / "coordinator" / "coordinator.db").read_bytes()
    assert b"Miller" not in database
