"""The documentation says what is true: links lead somewhere, examples parse."""

import importlib.util
import re
from pathlib import Path

import pytest
import tomli

from commonscale import config
from commonscale.errors import leaf_errors
from commonscale.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file, and every anchor a heading."""
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", page.read_text()):
        if target and "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", page.read_text()):
        text = (page.parent / target).read_text() if target else page.read_text()
        headings = {
            re.sub(r"[^\w\s-]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)
        }
        assert anchor in headings, f"{page.name} links to #{anchor}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "jobs.md"], ids=lambda p: p.name)
def test_pipelines_in_the_documentation_are_valid(page: Path) -> None:
    """Shown as TOML, read by the code that reads a user's file."""
    blocks = re.findall(r"```toml\n(.*?)```", page.read_text(), re.S)
    assert blocks
    for block in blocks:
        config.validate(Pipeline, tomli.loads(block), source=page.name, base=ROOT)


def test_python_in_the_documentation_compiles() -> None:
    """The example of the Python API."""
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jobs.md").read_text(), re.S):
        compile(block, "docs/jobs.md", "exec")


def test_the_transform_of_the_documentation_is_one() -> None:
    """The example of docs/architecture.md is a module as it stands."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.S)
    assert block == (ROOT / "commonscale" / "transforms" / "splines.py").read_text()


def test_every_metric_is_documented() -> None:
    """docs/operations.md lists what the daemons expose."""
    text = (ROOT / "docs" / "operations.md").read_text()
    names = re.findall(r'(?:Counter|Gauge|Histogram)\("(\w+)"', (ROOT / "commonscale" / "metrics.py").read_text())
    assert len(names) > 8
    for name in names:
        assert name in text, name


def test_every_error_says_what_it_means() -> None:
    """One sentence each."""
    assert all(kind.__doc__ and kind.__doc__.endswith(".") for kind in leaf_errors())


def test_what_is_revealed_is_made_from_the_code() -> None:
    """docs/disclosures.md is what docs/generate.py writes now."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.PAGE.read_text() == generate.page(), "run `python docs/generate.py`"
