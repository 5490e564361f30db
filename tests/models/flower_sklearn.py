"""A Flower app as its scikit-learn quickstart has one: a NumPyClient from a client_fn, with rows of its own."""

import warnings
from typing import Any

import numpy as np
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Context
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

FEATURES, CLASSES = 20, 3


class LogisticClient(NumPyClient):  # type: ignore[misc]
    """It has no get_parameters: in Flower the first weights are the server's."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        at = int(0.8 * len(x))
        self.X_train, self.X_test, self.y_train, self.y_test = x[:at], x[at:], y[:at], y[at:]
        self.model = LogisticRegression(max_iter=1, warm_start=True)
        self.model.classes_ = np.arange(CLASSES)

    def set(self, parameters: list[np.ndarray]) -> None:
        """Go on from these."""
        self.model.coef_, self.model.intercept_ = parameters

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """One iteration, which does not converge."""
        self.set(parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.fit(self.X_train, self.y_train)
        return [self.model.coef_, self.model.intercept_], len(self.X_train), {}

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Log loss."""
        self.set(parameters)
        loss = log_loss(self.y_test, self.model.predict_proba(self.X_test), labels=np.arange(CLASSES))
        return loss, len(self.X_test), {}


def client_fn(context: Context) -> Client:
    """For the rows of one site."""
    site = int(context.node_config["partition-id"])
    random = np.random.default_rng(site)
    y = np.arange(60 + 30 * site) % CLASSES
    return LogisticClient(random.normal(y[:, None] * np.linspace(0, 1, FEATURES), 1.0), y).to_client()


app = ClientApp(client_fn=client_fn)


def first() -> list[np.ndarray]:
    """As a server would send them."""
    return [np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)]
