"""Tables to train on, a job that does, and workers that hold still when a test says so."""

from pathlib import Path
from typing import Any

import numpy as np

from commonscale.files import replace_file
from commonscale.localnet import LocalFederation
from commonscale.pipeline import Pipeline

SITES = ["east", "north", "west"]
COLUMNS = ["age", "lab_creatinine", "lab_potassium", "days_in_hospital"]
MODELS = Path(__file__).parent / "models" / "watched.py"


def write_tables(directory: Path) -> dict[str, Path]:
    """One for each site."""
    return {site: _write(directory / f"{site}.csv", 900 + 150 * number, number) for number, site in enumerate(SITES)}


def _write(path: Path, rows: int, seed: int) -> Path:
    """A table in which two columns say much of each other: a model learns what tells them apart, and slowly."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, len(COLUMNS)))
    x[:, 3] = 0.85 * x[:, 0] + 0.53 * x[:, 3]
    risk = 1 / (1 + np.exp(-(2.4 * x[:, 0] - 2.2 * x[:, 3] - 0.5 * x[:, 2] - 0.2)))
    again = np.where(generator.random(rows) < risk, "yes", "no")
    cells = x * [14, 25, 0.4, 4] + [61, 90, 4.2, 9]
    lines = [",".join(f"{cell:.3f}" for cell in line) + f",{y}" for line, y in zip(cells, again, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join([*COLUMNS, "readmitted"]), *lines]) + "\n")
    return path


def training(name: str, rounds: int, **more: Any) -> Pipeline:
    """A job that scales the columns and trains."""
    train = {
        "model": "readmission", "columns": COLUMNS, "target": "readmitted", "classes": ["no", "yes"],
        "rounds": rounds, "local": {"batch_rows": 128, "learning_rate": 0.001}, "evaluation": {"every": 1}, **more,
    }  # fmt: skip
    steps = [{"transform": "zscore", "columns": COLUMNS}]
    content = {"name": name, "sites": SITES, "deadline_s": 600, "steps": steps, "train": train}
    return Pipeline.model_validate(content)


def hold(net: LocalFederation, site: str, number: int) -> None:
    """Let a site's worker hold still in a round, until it is let go."""
    replace_file(net.directory / site / "hold", str(number).encode())


def let_go(net: LocalFederation, site: str) -> None:
    """Undo hold."""
    (net.directory / site / "hold").unlink(missing_ok=True)
