"""Models of scikit-learn that learn in steps and whose weights can be averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from commonscale_worker.batches import batches, batches_per_round
from commonscale_worker.data import Data
from commonscale_worker.errors import Diverged, ModelError, Unsuitable
from commonscale_worker.models import Metrics, Round, class_metrics, value_metrics
from commonscale_worker.settings import Settings
from commonscale_worker.vectors import Array, Tensors

# What sklearn's own initialisation takes.
GLOROT = {"logistic": 2.0}


class SklearnModel:
    """A model around `estimator`: SGDClassifier, SGDRegressor, MLPClassifier, MLPRegressor and their like.

    Linear models start from zeros, networks from the job's seed. Learning rate, momentum, weight decay and batches are
    the job's; everything else is as the estimator was made.
    """

    estimator: ClassVar[Any]

    def prepare(self, data: Data, settings: Settings, features: Sequence[str], classes: Sequence[str]) -> None:
        """Make a fresh estimator, set for this job."""
        from sklearn.base import clone, is_classifier

        self._data, self._settings, self._classes = data, settings, np.arange(len(classes))
        self._name = type(self.estimator).__name__
        _check_kind(self.estimator, self._name)
        if is_classifier(self.estimator) != bool(classes):
            kinds = ("numbers, and the target has classes", "classes, and the target is a number")
            raise Unsuitable(f"{self._name} predicts {kinds[is_classifier(self.estimator)]}")
        self._estimator = clone(self.estimator)
        self._network = hasattr(self._estimator, "hidden_layer_sizes")
        self._estimator.set_params(**_parameters(self._estimator, self._name, settings, self._network))
        self._allocate(len(features))

    def get_weights(self) -> Tensors:
        """The coefficients and intercepts."""
        if not self._network:
            return {"coef": self._estimator.coef_, "intercept": self._estimator.intercept_}
        pairs = enumerate(zip(self._estimator.coefs_, self._estimator.intercepts_))
        return {f"{name}.{number}": part for number, pair in pairs for name, part in zip(("coef", "intercept"), pair)}

    def set_weights(self, weights: Tensors) -> None:
        """Go on from these; the optimiser starts anew."""
        if self._network:
            numbers = range(len(self._estimator.coefs_))
            self._estimator.coefs_ = [weights[f"coef.{number}"] for number in numbers]
            self._estimator.intercepts_ = [weights[f"intercept.{number}"] for number in numbers]
            self._estimator.__dict__.pop("_optimizer", None)
        else:
            self._estimator.coef_, self._estimator.intercept_ = weights["coef"], weights["intercept"]
            self._estimator.t_ = 1.0

    def fit(self, round: Round) -> None:  # noqa: A002
        """partial_fit on every batch of the round."""
        if self._settings.learning_rate_steps:
            name = _rate_name(self._network)
            self._estimator.set_params(**{name: self._settings.learning_rate_in(round.number)})
        count = batches_per_round(self._settings, self._data.rows)
        for number, taken in enumerate(batches(self._settings, round.number, self._data.rows), 1):
            self._step(self._data.x[taken], self._data.y[taken])
            round.progress(number / count)

    def evaluate(self) -> Metrics:
        """Log loss of classes, squared error of numbers."""
        x, y = self._data.x_evaluation, self._data.y_evaluation
        if not len(self._classes):
            return value_metrics(self._estimator.predict(x) if len(x) else y, y)
        if not len(x):
            return class_metrics(np.zeros((0, len(self._classes))), y)
        return class_metrics(self._probabilities(x), y)

    def _allocate(self, features: int) -> None:
        """Have the estimator make its arrays, by a step on made-up rows, then put the first weights there."""
        rows = max(len(self._classes), 2)
        self._step(np.zeros((rows, features), self._data.x.dtype), np.arange(rows).astype(self._data.y.dtype))
        for names in (("coefs_", "intercepts_"), ("coef_", "intercept_")):
            if all(hasattr(self._estimator, name) for name in names):
                break
        else:
            raise ModelError(f"{self._name} cannot be averaged: it has no coefficients and intercepts")
        random = np.random.default_rng(self._settings.seed)
        factor = GLOROT.get(getattr(self._estimator, "activation", ""), 6.0)
        first, bound = {}, 0.0
        for name, part in self.get_weights().items():
            if self._network and part.ndim == 2:
                # Of this layer's coefficients and of the intercepts behind them.
                bound = math.sqrt(factor / sum(part.shape))
            first[name] = np.asarray(random.uniform(-bound, bound, part.shape), part.dtype)
        self.set_weights(first)

    def _step(self, x: Array, y: Array) -> None:
        if self._network:
            # All rows that it is given, in one batch.
            self._estimator.batch_size = len(x)
        more = {"classes": self._classes} if len(self._classes) else {}
        try:
            self._estimator.partial_fit(x, y, **more)
        except ValueError as error:
            if any(word in str(error) for word in ("overflow", "non-finite")):
                raise Diverged(f"{self._name}: {error}") from error
            raise

    def _probabilities(self, x: Array) -> Array:
        """As the estimator says; from its decision values where it knows no probabilities."""
        if hasattr(self._estimator, "predict_proba"):
            return np.asarray(self._estimator.predict_proba(x))
        decided = np.asarray(self._estimator.decision_function(x), np.float64)
        if decided.ndim == 1:
            decided = np.stack([np.zeros_like(decided), decided], axis=1)
        powers = np.exp(decided - decided.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _check_kind(estimator: Any, name: str) -> None:
    module = type(estimator).__module__
    if any(word in module for word in ("tree", "ensemble", "xgboost", "lightgbm", "catboost")):
        raise ModelError(f"{name} cannot be averaged: trees of different sites have no weights in common")
    if not hasattr(estimator, "partial_fit"):
        raise ModelError(f'{name} does not learn in steps (it has no partial_fit); SGDClassifier(loss="log_loss") does')
    if getattr(estimator, "average", False):
        raise ModelError(f"{name} with average=True keeps a second set of weights that is not shared: make it without")


def _rate_name(network: bool) -> str:
    return "learning_rate_init" if network else "eta0"


def _parameters(estimator: Any, name: str, settings: Settings, network: bool) -> dict[str, Any]:
    """The job's settings by the estimator's own names."""
    known = estimator.get_params()
    for setting, value in (("proximal", settings.proximal), ("batchnorm", settings.batchnorm)):
        if value:
            raise ModelError(f"{name} does not know the setting {setting}: it is one of torch models")
    if settings.optimizer != "sgd" and "solver" not in known:
        raise ModelError(f"{name} does not know the setting optimizer = {settings.optimizer!r}")
    if settings.momentum and "momentum" not in known:
        raise ModelError(f"{name} does not know the setting momentum")
    if settings.weight_decay and "alpha" not in known:
        raise ModelError(f"{name} does not know the setting weight_decay")
    wanted: dict[str, Any] = {
        "random_state": settings.seed % 2**32,
        "learning_rate": "constant",
        "solver": settings.optimizer,
        "momentum": settings.momentum,
        "nesterovs_momentum": False,
        "warm_start": False,
    }
    if settings.learning_rate:
        wanted[_rate_name(network)] = settings.learning_rate
    if settings.weight_decay:
        wanted |= {"alpha": settings.weight_decay} if network else {"alpha": settings.weight_decay, "penalty": "l2"}
    return {key: value for key, value in wanted.items() if key in known}
