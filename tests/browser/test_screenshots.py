"""Pictures for docs/images, of a federation at work: COMMONSCALE_SCREENSHOTS=docs/images make test-browser."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Visitor
from tests.browser.dashboards import SITES, WatchedFederation
from tests.browser.trainings import TrainingFederation
from tests.patience import eventually

DIRECTORY = os.environ.get("COMMONSCALE_SCREENSHOTS", "")
MAX_BYTES = 250_000
STEPS = [
    {"transform": "zscore", "columns": ["age", "lab_potassium"]},
    {"transform": "quantiles", "columns": ["age"], "method": "masks"},
]

pytestmark = pytest.mark.skipif(not DIRECTORY, reason="COMMONSCALE_SCREENSHOTS names no directory")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedFederation]:
    with WatchedFederation(tmp_path_factory.mktemp("shown")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, federation: WatchedFederation) -> Iterator[Page]:
    visitor = Visitor(browser, federation.origin)
    page = visitor.open("/login", reduced_motion="reduce")
    page.get_by_label("Token").fill(federation.observer("ops"))
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_have_text("Live")
    yield page
    visitor.leave()
    assert visitor.complaints == []


def shoot(
    page: Page, name: str, *, of: str = "dashboard", theme: str = "light", width: int = 1280, height: int | None = None
) -> None:
    """The whole page, or as much of it as fits the height."""
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": height or 900})
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(300)
    path = Path(DIRECTORY) / f"{of}-{name}.png"
    small(Image.open(io.BytesIO(page.screenshot(full_page=height is None)))).save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES


def small(shot: Image.Image) -> Image.Image:
    """A third of the size: a palette of its most frequent colours, and of the others those that differ most."""
    pixels = np.asarray(shot.convert("RGB"), dtype=np.int32)
    colours, where, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)

    def distance(chosen: np.ndarray) -> np.ndarray:
        return ((colours - chosen) ** 2).sum(axis=1)

    palette = [colours[index] for index in np.argsort(-counts)[:128]]
    nearest = np.min([distance(colour) for colour in palette], axis=0)
    while len(palette) < min(256, len(colours)):
        palette.append(colours[np.argmax(nearest * np.minimum(counts, 200))])
        nearest = np.minimum(nearest, distance(palette[-1]))
    indices = np.argmin([distance(colour) for colour in palette], axis=0)[where.reshape(-1)]
    picture = Image.fromarray(indices.astype(np.uint8).reshape(pixels.shape[:2])).convert("P")
    picture.putpalette(np.array(palette, dtype=np.uint8).tobytes())
    return picture


def hang_in_mid_job(federation: WatchedFederation, page: Page, job_id: str, site: str) -> None:
    """Let a site's process stop dead in the second step of a job."""

    def begun() -> bool:
        rounds = page.request.get(f"{federation.origin}/api/jobs/{job_id}").json()["rounds"]
        return any(one["step"] == 1 for one in rounds)

    federation.decide(job_id, "approved")
    eventually(begun, pause_s=0.02)
    federation.pause(site)


def test_pictures(page: Page, federation: WatchedFederation) -> None:
    """A job that runs and awaits a site, one that failed for it, and the federation with both."""
    federation.submit(name="ages")
    federation.submit(name="creatinine", steps=[{"columns": ["lab_creatinine"]}])
    failed = federation.submit(name="lab-trial", sites=SITES, steps=STEPS, deadline_s=25)
    hang_in_mid_job(federation, page, failed, "west")
    page.goto(f"{federation.origin}/jobs/{failed}")
    expect(page.locator(".job-title .badge")).to_have_text("Failed", timeout=60_000)
    federation.go_on("west")
    expect(page.locator("[data-part=remedy]")).to_be_visible()
    shoot(page, "job-failed-light")
    shoot(page, "job-failed-dark", theme="dark")

    running = federation.submit(name="lab-values", sites=SITES, steps=STEPS)
    hang_in_mid_job(federation, page, running, "south")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{federation.origin}/jobs/{running}")
    expect(page.locator(".awaited-list time").first).to_have_text("14 s", timeout=60_000)
    shoot(page, "job-running-light")
    shoot(page, "job-running-dark", theme="dark")
    shoot(page, "job-running-phone", width=400, height=1500)
    page.goto(federation.origin)
    expect(page.locator("#connection")).to_have_text("Live")
    shoot(page, "overview-light")
    shoot(page, "overview-phone", width=400, height=1500)
    federation.go_on("south")
    expect(page.locator(f"[data-job={running}]")).to_contain_text("Done", timeout=60_000)


def test_pictures_of_training(browser: Browser, tmp_path: Path) -> None:
    """A training in its 24th round that awaits a site, and that site's page with its worker."""
    with TrainingFederation(tmp_path) as federation:
        error = federation.fail("could not convert 'unknown' to a number, in row 812").wire.error
        site = error.split(" failed with")[0]
        federation.hold(site, 24)
        job_id = federation.train("readmission", rounds=30, observers=True)
        outside = Visitor(browser, federation.origin)
        page = outside.open("/login", reduced_motion="reduce")
        page.get_by_label("Token").fill(federation.observer("ops"))
        page.keyboard.press("Enter")
        expect(page.locator("#connection")).to_have_text("Live")
        page.goto(f"{federation.origin}/jobs/{job_id}")
        expect(page.locator("[data-part=training]")).to_contain_text("24 of 30", timeout=120_000)
        expect(page.locator(".awaited-list li")).to_have_count(1)
        expect(page.locator(".awaited-list time")).to_have_text("3 s")
        shoot(page, "training-light", height=1250)
        shoot(page, "training-dark", theme="dark", height=1250)
        shoot(page, "training-phone", width=400, height=1750)
        inside = Visitor(browser, federation.site_origin(site))
        page = inside.open("/login", reduced_motion="reduce")
        page.get_by_label("Token").fill(federation.site_token(site))
        page.keyboard.press("Enter")
        expect(page.locator("#worker")).to_contain_text("round 24 of 30")
        shoot(page, "worker-light", of="site-page", height=900)
        outside.leave()
        inside.leave()
        assert outside.complaints + inside.complaints == []
