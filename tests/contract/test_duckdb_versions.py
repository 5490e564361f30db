"""The suite of sources on other releases of DuckDB: the oldest that we allow, and the next major one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ["numpy", "pyarrow", "pytest", "hypothesis"]


def interpreter(at_least: tuple[int, int]) -> str:
    """A Python that the release has wheels for: this one if it may be."""
    if sys.version_info[:2] >= at_least:
        return sys.executable
    found = next(filter(None, (shutil.which(f"python3.{minor}") for minor in range(at_least[1], 15))), None)
    if found is None:
        pytest.skip(f"needs Python {at_least[0]}.{at_least[1]} or later beside this one")
    return found


@pytest.mark.long
@pytest.mark.parametrize(("release", "python"), [("==1.1.*", (3, 10)), ("==2.*", (3, 11))])
def test_sources_on_another_duckdb(tmp_path: Path, release: str, python: tuple[int, int]) -> None:
    """DuckDB 2 would count not-a-number as a value where it believes the statistics of a Parquet file."""
    environment = tmp_path / "environment"
    subprocess.run([interpreter(python), "-m", "venv", environment], check=True, timeout=300)
    installed = [environment / "bin" / "pip", "install", "--quiet", f"duckdb{release}", *PACKAGES]
    subprocess.run(installed, check=True, timeout=900)
    suite = ["tests/contract/test_sources.py", "tests/unit/test_duckdb_source.py", "tests/unit/test_cuts.py"]
    # Only tests/conftest.py: the others know the daemons, and need what they need.
    options = ["--noconftest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q", "-m", "not long"]
    done = subprocess.run(
        [environment / "bin" / "python", "-m", "pytest", *options, *suite],
        check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
