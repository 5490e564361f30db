"""The page of a description: whole, and safe to open whatever columns and sites are called."""

import re
from html.parser import HTMLParser
from typing import Any

from commonscale.cli.description import page

HOSTILE = '<script>alert("1")</script>&\'" onload="x'
STEP: dict[str, Any] = {
    "transform": "describe", "columns": ["age", HOSTILE], "rows": 1200, "count": [1100, 0], "missing": [0.083, 1.0],
    "mean": [41.5, None], "sd": [9.25, None], "min": [18.0, None], "lower": [33.0, None], "median": [41.0, None],
    "upper": [50.0, None], "max": [90.0, None], "edges": [[18.0, 54.0, 90.0], []], "histogram": [[1, 1099], []],
}  # fmt: skip


class Elements(HTMLParser):
    """Every element with its attributes, and all text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def test_a_page_shows_every_number_and_bar() -> None:
    """One row a column, a bar for each bin, also for one that is hardly filled."""
    elements = Elements(page("job-1", ["north", "south", "west"], [STEP]))
    for shown in ("age", "1100", "8.3%", "41.5", "9.25", "18", "33", "41", "50", "90", "100.0%"):
        assert shown in elements.text
    assert "1,200 rows of 3 sites, pooled: north, south, west" in elements.text
    bars = [attributes for tag, attributes in elements.found if tag == "rect"]
    assert [bar["height"] for bar in bars] == ["1", "56"]
    assert "54 to 90: 1,099" in elements.text


def test_names_of_others_are_only_text() -> None:
    """No element or attribute comes of them, and the page may load and run nothing."""
    text = page(HOSTILE, [HOSTILE], [STEP])
    elements = Elements(text)
    assert not {tag for tag, _ in elements.found} & {"script", "img", "iframe", "link", "object", "form", "a"}
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert HOSTILE in elements.text
    (policy,) = [a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not re.search(r"https?:|url\(", text)


def test_without_extremes_there_is_no_chart() -> None:
    """Nor a column of it."""
    step = {key: value for key, value in STEP.items() if key not in ("min", "max")} | {"edges": [], "histogram": []}
    text = page("job-1", ["north"], [step])
    assert "<svg" not in text
    assert "histogram" not in text
    assert "largest" not in text
