"""The steps of a pipeline, tied to the protocols that run them and the estimators that come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commonscale.channel import Channel
from commonscale.pipeline import Pipeline, ZScoreStep
from commonscale.protocols import secure_sum, zscore
from commonscale.transforms import scaler
from commonscale.transforms.moments import Moments, TableStatistics


@dataclass(frozen=True)
class Fitted:
    """What a step ends with: the same at every site."""

    moments: Moments

    def estimator(self) -> Any:
        """A fitted scikit-learn object."""
        return scaler.standard_scaler(self.moments)

    def parameters(self) -> dict[str, Any]:
        """The same as JSON values."""
        return scaler.parameters(self.moments)


async def party(ch: Channel, step: ZScoreStep, table: TableStatistics) -> Fitted:
    """A site's role in a step."""
    way = secure_sum.WAYS[step.sums]
    return Fitted(await zscore.party(ch, table, step.columns, way, one_round=step.rounds == "one"))


async def coordinator(ch: Channel, step: ZScoreStep) -> Fitted:
    """The coordinator's role in a step."""
    way = secure_sum.WAYS[step.sums]
    return Fitted(await zscore.coordinator(ch, step.columns, way, one_round=step.rounds == "one"))


def disclosures(pipeline: Pipeline, was_sent: Callable[[int, str], bool]) -> list[dict[str, Any]]:
    """What a job has revealed, to whom, and by which protocol: from the messages that were really sent to all."""
    everyone = ["coordinator", "analyst", *pipeline.sites]
    report: list[dict[str, Any]] = [
        {
            "protocol": "admission",
            "what": "each site's verdict, and names and types of the requested columns where it accepted",
            "to": everyone,
        }
    ]
    for number, step in enumerate(pipeline.steps):
        entry = {"step": number, "protocol": f"zscore/{step.sums}", "columns": step.columns}
        for kind, what in zscore.reveals(step.rounds == "one").items():
            if was_sent(number, kind):
                report.append({**entry, "what": what, "to": everyone})
        if (warning := secure_sum.WAYS[step.sums].warning) and was_sent(number, "mean.Total"):
            report.append({**entry, "what": warning, "to": pipeline.sites})
    return report
