"""A worker's module with scikit-learn models."""

import commonscale_worker as cw
from sklearn.linear_model import SGDClassifier, SGDRegressor


@cw.model("risk")
class Risk(cw.SklearnModel):
    """Logistic regression."""

    estimator = SGDClassifier(loss="log_loss")


@cw.model("stay")
class Stay(cw.SklearnModel):
    """Linear regression."""

    estimator = SGDRegressor()
