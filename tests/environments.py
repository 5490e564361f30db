"""Python environments with some packages and nothing else."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.patience import PATIENCE_S


class ScikitLearnAlone:
    """An environment with scikit-learn and skops in the versions of this one, and what they need."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=300)
        self._python = directory / "bin" / "python"
        wanted = [f"{name}=={metadata.version(name)}" for name in ("scikit-learn", "skops")]
        subprocess.run([self._python, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=600)

    def transform(self, pipeline: Path, rows: list[list[float | None]]) -> tuple[list[list[float]], list[str]]:
        """What a saved pipeline makes of rows there, and the names of its outputs; a warning is an error."""
        script = """
import importlib.util, json, sys
import numpy as np, skops.io
assert not any(map(importlib.util.find_spec, ("commonscale", "pandas", "pyarrow")))
made = skops.io.load(sys.argv[1], trusted=["numpy.dtype"])
table = np.array(json.load(sys.stdin), dtype=float)
print(json.dumps([made.transform(table).tolist(), made.get_feature_names_out().tolist()]))
"""
        bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [self._python, "-W", "error::UserWarning", "-c", script, pipeline],
            cwd=pipeline.parent, env=bare, input=json.dumps(rows), capture_output=True, text=True, check=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        values, names = json.loads(done.stdout)
        return values, names
