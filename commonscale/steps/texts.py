"""Bytes-Norm, Mod-Norm, fastText and rolling hash: encodings that read the text itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.encodingspec import BytesNormStep, CategoricalStep, FastTextStep, ModNormStep, RollingHashStep
from commonscale.errors import Disagreement
from commonscale.protocols import agreement, secure_sum
from commonscale.protocols.categories import bytes_norm
from commonscale.slot import HUB
from commonscale.steps.reveal import Reveal
from commonscale.transforms.encodings import FittedTexts
from commonscale.v1.protocols_pb2 import ModelHash

_MASKS = secure_sum.WAYS["masks"]


def protocol(step: CategoricalStep, _: int) -> str:
    """Its name in the disclosure report."""
    return step.transform


def reveals(step: CategoricalStep, _: int) -> dict[str, Reveal]:
    """What is learnt when a message of a kind is sent, and by whom."""
    if isinstance(step, BytesNormStep):
        return {
            "length.1.Answers": Reveal(bytes_norm.REVEALS_LENGTH),
            "moments.HiddenIntegers": Reveal(bytes_norm.REVEALS, "sites"),
        }
    if isinstance(step, ModNormStep):
        return {"sizes.Total": Reveal("sum over all sites of the number of different values of each column")}
    return {"ModelHash": Reveal("the hash of the model file")} if isinstance(step, FastTextStep) else {}


async def party(ch: Channel, step: CategoricalStep, table: Any) -> FittedTexts:
    """A site's role."""
    if isinstance(step, BytesNormStep):
        found = await offload(table.categories, step.columns, step.rules)
        moments = await bytes_norm.party(ch, step.columns, found)
        means, variances = [_ratio(m.mean) for m in moments], [_ratio(m.variance) for m in moments]
        return _fitted(step, {}, {"means": means, "variances": variances})
    if isinstance(step, ModNormStep):
        sizes = [len(column) for column in await offload(table.categories, step.columns, step.rules)]
        names = [f"number of values of column {column!r}" for column in step.columns]
        return _mod_norm(step, await secure_sum.party(ch.scope("sizes"), _MASKS, names, sizes))
    if isinstance(step, FastTextStep):
        model = await offload(table.model, step.model)
        digest = bytes.fromhex(model.sha256)
        await ch.send(HUB, ModelHash, lambda: ModelHash(sha256=digest))
        await agreement.party(ch, digest)
        private = {"model": str(model.path), "dimension": model.dimension, "sha256": model.sha256}
        return _fitted(step, {"model": step.model, "sha256": model.sha256}, private)
    return _rolling_hash(step)


async def coordinator(ch: Channel, step: CategoricalStep) -> FittedTexts:
    """The coordinator's role."""
    if isinstance(step, BytesNormStep):
        await bytes_norm.coordinator(ch, step.columns)
        return _fitted(step, {}, {})
    if isinstance(step, ModNormStep):
        return _mod_norm(step, await secure_sum.coordinator(ch.scope("sizes"), _MASKS, len(step.columns)))
    if isinstance(step, FastTextStep):
        hashes = {site: message.sha256 for site, message in (await ch.gather(ModelHash)).items()}
        (first, reference), *others = hashes.items()
        for site, digest in others:
            if digest != reference:
                raise Disagreement(
                    f"{site} has another file for model {step.model!r} than {first}.",
                    "Give all sites the same file.",
                )
        await agreement.coordinator(ch)
        return _fitted(step, {"model": step.model, "sha256": reference.hex()}, {})
    return _rolling_hash(step)


def _fitted(step: CategoricalStep, public: dict[str, Any], private: dict[str, Any]) -> FittedTexts:
    return FittedTexts(step.transform, tuple(step.columns), step.rules, public, private)


def _mod_norm(step: ModNormStep, totals: list[Fraction]) -> FittedTexts:
    secure_sum.check_counts(step.columns, totals)
    sums = [max(int(total), 1) for total in totals]
    return _fitted(step, {"values": sums}, {"sums": sums})


def _rolling_hash(step: CategoricalStep) -> FittedTexts:
    assert isinstance(step, RollingHashStep)
    public = {"prime": step.prime, "buckets": step.buckets}
    return _fitted(step, public, public)


def _ratio(number: Fraction) -> tuple[int, int]:
    return number.numerator, number.denominator
