"""The three data sets: categorical columns as texts, numeric columns as numbers, a label of 0 or 1.

Adult (UCI): the 45,222 rows without a missing cell, training and test file together; 8 categorical and 5 numeric
columns (all but fnlwgt, the census weight). Positive: more than 50K.
German Credit (UCI): 1,000 rows, 13 categorical and 7 numeric columns. Positive: a good credit.
Law School: the paper has 96,584 applications to law schools (admitted or not), which are not available; here are the
20,798 students of the LSAC bar passage study as cleaned by Le Quy et al., with five categorical columns (race, sex,
full time, family income, tier of the school) and two numeric ones (LSAT, undergraduate grades). Positive: passed the
bar. As 89 % did, "everybody passes" would have an F1 of 0.94; so the passes are thinned out at random to as many as the
failures: 4,586 rows.

Categories are canonical texts, as sites compare them.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from commonscale.categories import canonical
from commonscale.errors import ConfigError

Floats: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]
Texts: TypeAlias = npt.NDArray[np.object_]
Rows: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """Some rows: categories, numbers and labels."""

    categories: Texts
    numbers: Floats
    labels: Labels

    def __len__(self) -> int:
        """Rows."""
        return len(self.labels)

    def take(self, rows: Rows) -> Table:
        """The named rows."""
        return Table(self.categories[rows], self.numbers[rows], self.labels[rows])


@dataclass(frozen=True)
class Dataset:
    """Where the rows come from, what they are, and the network that learns them."""

    name: str
    files: tuple[str, ...]
    read: Callable[[str], list[list[str]]]
    columns: tuple[str, ...]
    categorical: tuple[str, ...]
    numeric: tuple[str, ...]
    label: str
    positive: str
    hidden: tuple[int, ...]
    batch_rows: int
    rounds: int
    balanced: bool = False

    def load(self, directory: Path) -> Table:
        """All rows without a missing cell; if balanced, as many of one class as of the other."""
        rows = [row for file in self.files for row in self.read(_text(directory / file)) if "?" not in row]
        cells = np.array(rows, dtype=object)
        place = {name: i for i, name in enumerate(self.columns)}
        table = Table(
            np.vectorize(canonical, otypes=[object])(cells[:, [place[name] for name in self.categorical]]),
            cells[:, [place[name] for name in self.numeric]].astype(np.float64),
            (cells[:, place[self.label]] == self.positive).astype(np.int64),
        )
        return _thinned(table) if self.balanced else table


def _thinned(table: Table) -> Table:
    classes = [np.flatnonzero(table.labels == label) for label in (0, 1)]
    rng = np.random.default_rng(0)  # which rows the data set has is no matter of the study's seed
    least = min(len(rows) for rows in classes)
    return table.take(np.sort(np.concatenate([rng.choice(rows, least, replace=False) for rows in classes])))


def _text(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"{path} is missing.", "Set COMMONSCALE_DATA to the directory of the data sets.")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def _adult(text: str) -> list[list[str]]:
    # The test file begins with a comment, and its labels end in a full stop.
    lines = [line.strip().rstrip(".") for line in text.splitlines()]
    return [line.split(", ") for line in lines if "," in line]


def _german(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def _law_school(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.splitlines()[1:] if line.strip()]


ADULT = Dataset(
    name="adult",
    files=("adult/adult.data.xz", "adult/adult.test.xz"),
    read=_adult,
    columns=(
        "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
        "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
    ),
    categorical=(
        "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
    ),
    numeric=("age", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
    label="income", positive=">50K", hidden=(32, 16), batch_rows=64, rounds=40,
)  # fmt: skip
GERMAN = Dataset(
    name="german",
    files=("german_credit/german.data.xz",),
    read=_german,
    columns=(
        "checking", "duration", "history", "purpose", "amount", "savings", "employment", "rate", "personal", "debtors",
        "residence", "property", "age", "plans", "housing", "credits", "job", "liable", "telephone", "foreign",
        "credit",
    ),
    categorical=(
        "checking", "history", "purpose", "savings", "employment", "personal", "debtors", "property", "plans",
        "housing", "job", "telephone", "foreign",
    ),
    numeric=("duration", "amount", "rate", "residence", "age", "credits", "liable"),
    label="credit", positive="1", hidden=(16, 8), batch_rows=16, rounds=60,
)  # fmt: skip
LAW_SCHOOL = Dataset(
    name="law-school",
    files=("law_school/law_school_clean.csv.xz",),
    read=_law_school,
    columns=(
        "decile1b", "decile3", "lsat", "ugpa", "zfygpa", "zgpa", "fulltime", "fam_inc", "male", "tier", "race",
        "pass_bar",
    ),
    categorical=("race", "male", "fulltime", "fam_inc", "tier"),
    numeric=("lsat", "ugpa"),
    label="pass_bar", positive="1.0", hidden=(16, 8), batch_rows=32, rounds=40, balanced=True,
)  # fmt: skip
DATASETS = {d.name: d for d in (ADULT, GERMAN, LAW_SCHOOL)}
