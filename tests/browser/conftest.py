"""A real Chromium that visits the pages of real daemons, and notes everything that it complains about."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

T = TypeVar("T")

# Longer than anything takes on a busy machine.
LIMIT_MS = 30_000
expect.set_options(timeout=LIMIT_MS)

# Without its own traffic; without a sandbox, which root and containers do not have.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is in this directory needs a browser."""
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        if os.environ.get("COMMONSCALE_REQUIRE_BROWSER"):
            pytest.fail("Chromium is required here and missing")
        pytest.skip("no Chromium: install the Debian package chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


def aside(work: Callable[[], T]) -> T:
    """Run something in a thread of its own: Playwright's event loop occupies this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


class Visitor:
    """Someone at a page: opens it, and collects what the browser finds wrong with it."""

    def __init__(self, browser: Browser, origin: str) -> None:
        self._browser = browser
        self.origin = origin
        self.pages: list[Page] = []
        self.complaints: list[str] = []
        # What a test brings about itself, such as a wrong token.
        self.expected = re.compile(r"(?!)")

    def open(self, path: str = "/", *, width: int = 1280, height: int = 900, **context: Any) -> Page:
        """A new browser window with nothing remembered."""
        window = self._browser.new_context(viewport={"width": width, "height": height}, **context)
        page = window.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda message: message.type in ("error", "warning") and self.complain(message.text))
        page.on("pageerror", lambda error: self.complain(f"uncaught: {error}"))
        page.on("request", self._own_origin)
        self.pages.append(page)
        page.goto(self.origin + path)
        return page

    def complain(self, text: str) -> None:
        # A network interface of this machine came or went, which makes Chromium drop its connections.
        if not self.expected.search(text) and "ERR_NETWORK_CHANGED" not in text:
            self.complaints.append(text)

    def _own_origin(self, request: Any) -> None:
        if not request.url.startswith(self.origin + "/"):
            self.complaints.append(f"request to elsewhere: {request.url}")

    def leave(self) -> None:
        for page in self.pages:
            page.context.close()


# Run in the page; each returns a list of what is wrong.
ACCESSIBLE = (Path(__file__).parent / "accessible.js").read_text()
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


def assert_sound(page: Page) -> None:
    """Accessible by our own rules, readable, and no wider than its window."""
    assert page.evaluate(ACCESSIBLE) == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
