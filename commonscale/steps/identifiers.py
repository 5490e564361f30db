"""One-hot, ordinal and target encoding: by common identifiers."""

from __future__ import annotations

from typing import Any

from commonscale.channel import Channel
from commonscale.concurrency import offload
from commonscale.encodingspec import IdentifierStep, OneHotStep, OrdinalStep, TargetStep
from commonscale.protocols.categories import (
    identifiers,
    labeled,
    labeled_native,
    layout,
    matching,
    ring,
    set_bounds,
    target_means,
    threshold,
)
from commonscale.protocols.categories.identifiers import Options
from commonscale.protocols.categories.items import Values
from commonscale.protocols.categories.layout import Public, Wish
from commonscale.steps.reveal import Reveal
from commonscale.transforms.encodings import FittedIdentifiers, FittedTarget


def protocol(step: IdentifierStep, _: int) -> str:
    """Its name in the disclosure report."""
    if isinstance(step, TargetStep) and step.means == "local":
        return "target/local"
    return f"{step.transform}/{step.variant}"


def reveals(step: IdentifierStep, _: int) -> dict[str, Reveal]:
    """What is learnt when a message of a kind is sent, and by whom."""
    if isinstance(step, TargetStep) and step.means == "local":
        return {}
    found = {"Layout": Reveal(layout.SIZES)}
    if step.variant != "oprf":
        found["ring.RingOffsets"] = Reveal(ring.REVEALS, "sites")
    if step.variant != "ring":
        in_use = layout.COUNTS if step.min_frequency else layout.IN_USE
        found["in-use.HiddenCounts"] = Reveal(in_use, "sites")
        if not step.max_categories:
            found["bounds.1.Answers"] = Reveal(set_bounds.REVEALS)
    if step.variant == "oprf":
        found["match.Tokens"] = Reveal(matching.REVEALS, "coordinator")
    if step.variant == "apsi":
        answer = labeled_native.ANSWER if step.backend == "native" else "PsiAnswer"
        found[f"psi.{answer}"] = Reveal(labeled.REVEALS_BOTH if step.both_directions else labeled.REVEALS, "sites")
    if step.variant == "otmppsi":
        shares = "psi.Tokens" if step.threshold == 2 and not step.general else "psi.ShareTables"
        found[shares] = Reveal(threshold.REVEALS_HITS.format(t=step.threshold), "last site")
        if step.threshold > 2:
            found["psi.Unblinding"] = Reveal(threshold.REVEALS_TOKENS, "coordinator")
        found["psi.ClassIdentifiers"] = Reveal(threshold.REVEALS_OWNERS.format(t=step.threshold), "sites")
    if step.extends:
        found["Known"] = Reveal(layout.KNOWN)
        found["numbers.HiddenCounts"] = Reveal(layout.NUMBERS, "sites")
    if isinstance(step, TargetStep):
        alone = "" if step.variant == "oprf" else target_means.REVEALS_ALONE
        found["target.HiddenVector"] = Reveal(target_means.REVEALS + alone, "sites")
    return found


async def party(ch: Channel, step: IdentifierStep, table: Any) -> FittedIdentifiers | FittedTarget:
    """A site's role."""
    if isinstance(step, TargetStep):
        return await _party_target(ch, step, table)
    values = await offload(Values.of, table, step.columns, step.rules)
    remembered = await offload(table.remembered, step.extends, step.columns, step.rules) if step.extends else None
    if remembered is not None:
        # What is gone from the table keeps its identifier, and is still compared.
        values = values.with_texts([dictionary.values for dictionary in remembered.dictionaries])
    found = await identifiers.party(ch, values, _options(step), remembered)
    return _fitted(step, found.public, found)


async def coordinator(ch: Channel, step: IdentifierStep) -> FittedIdentifiers | FittedTarget:
    """The coordinator's role."""
    if isinstance(step, TargetStep):
        if step.means == "local":
            return _fitted_target(step, Public((), (), b""), None)
        public = await identifiers.coordinator(ch, step.columns, _options(step))
        await target_means.coordinator(ch, public.sizes)
        return _fitted_target(step, public, None)
    return _fitted(step, await identifiers.coordinator(ch, step.columns, _options(step)), None)


async def _party_target(ch: Channel, step: TargetStep, table: Any) -> FittedTarget:
    sums = await offload(table.target_sums, step.columns, step.target, step.rules)
    if step.means == "local":
        return _fitted_target(step, Public((), (), b""), target_means.local(sums, step.smoothing, step.formula))
    values = await offload(Values.of, table, step.columns, step.rules)
    found = await identifiers.party(ch, values, _options(step))
    means = await target_means.party(ch, found, sums, step.smoothing, step.formula)
    return _fitted_target(step, found.public, means)


def _options(step: IdentifierStep) -> Options:
    wish = Wish(step.variant != "ring", step.min_frequency, step.extends)
    return Options(
        step.variant, step.max_categories, step.padding, step.threshold, step.general, step.both_directions, wish,
        step.backend,
    )  # fmt: skip


def _fitted(step: IdentifierStep, public: Public, found: layout.Layout | None) -> FittedIdentifiers:
    assert isinstance(step, (OneHotStep, OrdinalStep))
    return FittedIdentifiers(
        step.transform, tuple(step.columns), step.variant, public.sizes, public.infrequent, public.digest,
        step.handle_unknown, step.rules, step.variant != "ring" and step.threshold == 2,
        found.dictionaries if found else (),
    )  # fmt: skip


def _fitted_target(step: TargetStep, public: Public, means: target_means.Means | None) -> FittedTarget:
    return FittedTarget(
        tuple(step.columns), step.target, step.means, step.variant, step.smoothing, step.formula, public.sizes,
        public.digest, step.rules, means.tables if means else (), means.mean if means else 0.0,
    )  # fmt: skip
