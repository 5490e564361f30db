"""The steps of a pipeline, tied to the protocols that run them and the estimators that come out.

One module a transform: `party`, `coordinator` and what it reveals. Protocols under encryption are imported when they
are used: a daemon that never computes under encryption never loads OpenFHE.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from commonscale.channel import Channel
from commonscale.errors import ConfigError, SiteLost
from commonscale.pipeline import Pipeline
from commonscale.steps import extremes, identifiers, ranks, texts, yeo_johnson, zscore
from commonscale.steps.reveal import Reveal
from commonscale.stepspec import Step
from commonscale.transforms.results import Fitted

MODULES: dict[str, ModuleType] = {
    "zscore": zscore,
    "minmax": extremes,
    "maxabs": extremes,
    "robust": ranks,
    "quantiles": ranks,
    "yeo-johnson": yeo_johnson,
    "onehot": identifiers,
    "ordinal": identifiers,
    "target": identifiers,
    "bytes-norm": texts,
    "mod-norm": texts,
    "fasttext": texts,
    "rolling-hash": texts,
}


async def party(ch: Channel, step: Step, table: Any) -> Fitted:
    """A site's role in a step."""
    with _openfhe_is_there():
        fitted: Fitted = await MODULES[step.transform].party(ch, step, table)
    return fitted


async def coordinator(ch: Channel, step: Step) -> Fitted:
    """The coordinator's role in a step."""
    if ch.losses.stand_ins:
        lost = ", ".join(ch.losses.stand_ins)
        raise SiteLost(f"{lost} was lost, and the next step needs it.", "Submit the remaining steps without it.")
    with _openfhe_is_there():
        fitted: Fitted = await MODULES[step.transform].coordinator(ch, step)
    return fitted


@contextlib.contextmanager
def _openfhe_is_there() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"This daemon cannot compute under encryption: {error}.",
            "OpenFHE needs Python 3.10 on Linux (x86-64) and the library libgomp (Debian package libgomp1).",
        ) from None


def disclosures(pipeline: Pipeline, was_sent: Callable[[int, str], bool]) -> list[dict[str, Any]]:
    """What a job has revealed, to whom, and by which protocol: from the messages that were really sent."""
    verdicts = Reveal("each site's verdict, and names and types of the requested columns where it accepted")
    report: list[dict[str, Any]] = [
        {"protocol": "admission", "what": verdicts.what, "to": verdicts.names(pipeline.sites)}
    ]
    for number, step in enumerate(pipeline.steps):
        module = MODULES[step.transform]
        entry = {"step": number, "protocol": module.protocol(step, len(pipeline.sites)), "columns": step.columns}
        for kind, found in module.reveals(step, len(pipeline.sites)).items():
            reveal = found if isinstance(found, Reveal) else Reveal(found)
            if was_sent(number, kind):
                report.append({**entry, "what": reveal.what, "to": reveal.names(pipeline.sites)})
        if (warning := zscore.warning(step)) and was_sent(number, "mean.Total"):
            report.append({**entry, "what": warning, "to": pipeline.sites})
    return report
