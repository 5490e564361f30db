"""The model that the demo trains. A worker offers it: `commonscale-worker run commonscale.cli.demo_model`."""

import commonscale_worker as cw
from sklearn.linear_model import SGDClassifier

MODEL = "diagnosis"


@cw.model(MODEL)
class Diagnosis(cw.SklearnModel):
    """Logistic regression, in steps."""

    estimator = SGDClassifier(loss="log_loss")
