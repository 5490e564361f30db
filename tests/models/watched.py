"""A worker's module for pages that are looked at: a model that holds still in a round, and one that fails."""

import sys
import time
from pathlib import Path

import commonscale_worker as cw
from sklearn.linear_model import SGDClassifier


def told(name: str) -> str:
    """What a test has written into the site's own directory, which the socket's address names."""
    address = sys.argv[sys.argv.index("--socket") + 1]
    file = Path(address.removeprefix("ipc://")).parents[1] / name
    return file.read_text() if file.exists() else ""


@cw.model("readmission")
class Readmission(cw.SklearnModel):
    """Logistic regression that waits, a good third into a round, as long as its site's file says so."""

    estimator = SGDClassifier(loss="log_loss")

    def fit(self, round: cw.Round) -> None:  # noqa: A002
        """Train, or hold still first."""
        while told("hold") == str(round.number):
            round.progress(0.37)
            time.sleep(0.05)
        super().fit(round)


@cw.model("faulty")
class Faulty(cw.SklearnModel):
    """Says what it stumbled over, which nobody else may hear."""

    estimator = SGDClassifier(loss="log_loss")

    def fit(self, round: cw.Round) -> None:  # noqa: A002
        """Fail."""
        raise ValueError(told("fault"))
