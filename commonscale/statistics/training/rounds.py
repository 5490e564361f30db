"""Federated training, one function for all roles: local training at each site's worker, secure sums, the rest alike.

1. Each worker gets ready. The sites add up their rows, and compare number of parameters and first weights.
2. In each round the chosen sites let their workers train from the same weights w; site i adds n_i/n · (w_i - w), and
   with Federated BatchNorm the sums of its layers.
3. Every site applies the server's rule to the sum, scaled by N/|U| if only |U| of N sites were chosen.
4. Every few rounds the sites add up how the model does on the rows that they keep apart.
5. At each round's end the sites agree on everything announced and on the model; a restart goes on from there.

The rows of a chosen set are never added up: the totals of several sets would give each site's rows by linear algebra.
With `robust`, a median or trimmed mean of what single sites say takes the place of a sum (statistics.training.robust).

A site that is silent for longer than the job's patience is out: the round begins anew among the others, from what their
workers have answered, with new masks, and from then on the model is no longer measured. Where fewer than three of a
drawn set are left, the next by lot join them.

Differs from "Federated BatchNorm": weights by rows instead of equal ones, local steps, sampling, and sums that the
coordinator adds without seeing them.

Reveals: rows of all sites together, number of parameters, and the pooled figures of the model, to everyone; the sum of
the updates of a round to the sites, or to everyone where the job asks for that and every site's policy allows it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from commonscale.errors import BadMessage, ModelMismatch, PayloadTooLarge, TooFewSites
from commonscale.hidden import HIDDEN, Hidden, known
from commonscale.pool import Pool
from commonscale.protocols.admission import MIN_SITES
from commonscale.reveal import Reveal
from commonscale.statistics.training import evaluation, model_state, robust
from commonscale.statistics.training.batchnorm import Statistics
from commonscale.statistics.training.contribution import Contribution, Sizes, diverged, encoded, rounded
from commonscale.statistics.training.model_files import MAX_PUBLISHED_PARAMETERS, safetensors
from commonscale.statistics.training.model_state import History, Model
from commonscale.statistics.training.server_rules import RuleState
from commonscale.statistics.training.standing import standing
from commonscale.statistics.training.worker import Arrays, Order, Ready
from crypto import fixed61
from crypto.fixed_point import FixedPointOverflowError
from crypto.rings import FIELD61, Vector

if TYPE_CHECKING:
    from commonscale.transforms.training import Train

Floats = NDArray[np.float64]

SIZES = Reveal(
    "sizes",
    "rows to train and evaluate on, of all sites together; number of parameters; a mark of the first weights",
)
FIRST = Reveal("first", "the first weights of the model", "sites")
_AVERAGE = "the average update of the model and the sums of its BatchNorm layers in each round, so every round's model"
UPDATE = Reveal("update", _AVERAGE, "sites")
OPEN_UPDATE = Reveal("update", _AVERAGE)
MODEL = Reveal("model", "the trained model")
ABSENT = Reveal("absent", "which sites were silent for too long")
METRICS = Reveal(
    "metrics", "pooled loss of the model on rows kept apart, and their counts by true and predicted class and score"
)
OBSERVED_METRICS = replace(METRICS, to="everyone and observers")


@dataclass(frozen=True)
class Trained:
    """How a training ended."""

    sizes: Sizes
    history: History
    model: Model | Hidden
    # At a site: names and shapes of the tensors.
    ready: Ready | Hidden
    sites: Sequence[str]
    # The model's file, where everyone may have it.
    published: bytes = field(default=b"", repr=False)


async def train(pool: Pool, options: "Train") -> Trained:
    """All roles."""
    ready = await pool.prepare(options.local_order())  # 1.
    sizes = await _sizes(pool, options, ready)
    first = await _first_model(pool, options, sizes, ready)
    session = await pool.session()
    history, model = model_state.from_bytes(session.state) if session.state else (History(), first)
    pool.lose(history.lost)
    pool.report(standing(history, options.rounds))
    for number, here in session.rounds(options.rounds):
        if history.stopped:
            break
        model, history = await _round(here, options, sizes, ready, model, history, number)
        # Counts without a lost site beside counts with it would show that site's rows, class by class.
        if not history.lost and options.evaluation.is_due(number, options.rounds):
            figures = await _evaluate(here, options, sizes, model, number)  # 4.
            history = history.measured(figures, options.evaluation.patience)
        await session.checkpoint(await _state(here, history, model))  # 5.
        pool.report(standing(history, options.rounds))
    trained = Trained(sizes, history, model, ready, tuple(pool.sites))
    if options.model_for == "everyone":
        return replace(
            trained, published=await pool.publish(MODEL, lambda: safetensors(options, known(ready), known(model)))
        )
    return trained


async def _state(pool: Pool, history: History, model: Model | Hidden) -> bytes:
    found = await pool.at_sites(partial(model_state.to_bytes, history, model))
    return model_state.to_bytes(history, HIDDEN) if isinstance(found, Hidden) else found


async def _sizes(pool: Pool, options: "Train", ready: Ready | Hidden) -> Sizes:
    """Step 1: of numbers that must be the same at all sites, the sum is so many times a site's own."""

    def own() -> list[int]:
        mine = known(ready)
        mark = _mark(mine) if options.init == "seed" else _mark(replace(mine, weights=np.zeros(0)))
        return [mine.rows, mine.evaluation_rows, len(mine.weights), mine.channels, len(mine.layers), mark]

    total = [int(number) for number in await pool.add_counts(SIZES, 6, own)]
    count = len(pool.sites)

    def check() -> None:
        for what, alone, together in zip(_COMPARED, own()[2:], total[2:], strict=True):
            if alone * count != together:
                raise _mismatch(pool, f"Model {options.model!r} has another {what} here than at the other sites.")

    await pool.at_sites(check)
    rows, evaluation_rows, *alike = total
    if any(number % count for number in alike):
        beside = f", or the result of the job {options.after}," if options.after else ""
        raise _mismatch(pool, f"Model {options.model!r}{beside} is not the same at all sites.")
    if rows == 0:
        raise BadMessage(f"The sums in {SIZES.scope} are those of sites without rows.")
    parameters, channels, layers, _ = (number // count for number in alike)
    if options.model_for == "everyone" and parameters > MAX_PUBLISHED_PARAMETERS:
        raise PayloadTooLarge(
            f"Model {options.model!r} has {parameters:,} parameters; at most {MAX_PUBLISHED_PARAMETERS:,} go to the "
            "analyst with a job's result.",
            'Leave out model_for = "everyone": every site keeps the model.',
        )
    return Sizes(rows, evaluation_rows, parameters, channels, layers)


def _mismatch(pool: Pool, what: str) -> ModelMismatch:
    return ModelMismatch(
        what,
        "Install the same model with the same libraries at every site; if only first weights differ, begin from those "
        f'of one site: init = "site:{pool.sites[0]}".',
    )


_COMPARED = (
    "number of parameters",
    "number of BatchNorm channels",
    "number of BatchNorm layers",
    "shape, start or result of the job that it comes after",
)


def _mark(ready: Ready) -> int:
    """40 bits that two models have in common only if they are alike."""
    alike = (ready.tensors, ready.layers, str(ready.weights.dtype), ready.after)
    digest = hashlib.sha256(repr(alike).encode())
    digest.update(np.ascontiguousarray(ready.weights).tobytes())
    return int.from_bytes(digest.digest()[:5], "big")


async def _first_model(pool: Pool, options: "Train", sizes: Sizes, ready: Ready | Hidden) -> Model | Hidden:
    """Everyone's own first weights, which are the same; or one site's, by a sum to which the others add zeros."""
    giver = options.init.removeprefix("site:")

    def given() -> Vector:
        weights = known(ready).weights.astype(np.float64)
        mine = weights if pool.me == giver else np.zeros_like(weights)
        return encoded(pool.me, known(ready), mine, len(pool.sites))

    total: Vector | Hidden | None = None
    if options.init != "seed":
        total = await pool.add_hidden(FIRST, FIELD61, sizes.parameters, given)

    def model() -> Model:
        mine = known(ready)
        weights = mine.weights.astype(np.float64) if total is None else fixed61.decode(known(total))
        rule = RuleState.initial(options.server, len(weights))
        return Model(rounded(weights, options.precision), rule, Statistics.initial(mine.channels))

    return await pool.at_sites(model)


async def _round(
    pool: Pool,
    options: "Train",
    sizes: Sizes,
    ready: Ready | Hidden,
    model: Model | Hidden,
    history: History,
    number: int,
) -> tuple[Model | Hidden, History]:
    """Steps 2 and 3."""
    chosen: Sequence[str] = _chosen(pool, options, history, number)
    trained = await _trained(pool, options, model, history, chosen, number)
    own = Contribution(options, sizes, len(pool.sites), number)
    if options.robust.of == "updates":
        average = await robust.update(
            pool.among(chosen),
            options.robust.rule_of(len(chosen)),
            sizes.parameters,
            lambda: own.update(known(model), known(trained)),
        )
        after = await pool.at_sites(lambda: own.stepped(known(model), known(average)))
    else:
        after, history, chosen = await _summed(pool, options, own, ready, model, trained, chosen, history)
    if own.robust_statistics:
        statistics = await robust.StatisticsRound(own).pooled(pool.among(chosen), ready, model, trained)
        stepped = after
        after = await pool.at_sites(lambda: replace(known(stepped), statistics=known(statistics)))
    return after, history.after(number, chosen)


async def _trained(
    pool: Pool, options: "Train", model: Model | Hidden, history: History, chosen: Sequence[str], number: int
) -> Arrays | Hidden:
    """What the worker of a chosen site answers: once, however often that is asked."""

    def order() -> Order:
        return replace(_order("train", options, known(model), number), previous=history.trained.get(pool.me, 0))

    return await pool.among(chosen).work(order)


async def _summed(
    pool: Pool, options: "Train", own: Contribution, ready: Ready | Hidden, model: Model | Hidden,
    trained: Arrays | Hidden, chosen: Sequence[str], history: History,
) -> tuple[Model | Hidden, History, Sequence[str]]:  # fmt: skip
    """The next model from a sum; if sites are missing, again among the others, from what their workers answered."""
    attempt = 1
    while isinstance(total := await _total(pool, options, own, ready, model, trained, chosen, attempt), tuple):
        history = history.without(total)
        pool.lose(total)
        chosen = [site for site in chosen if site not in history.lost]
        attempt += 1
        if len(chosen) < MIN_SITES:
            chosen = _chosen(pool, options, history, own.number)
            trained = await _trained(pool, options, model, history, chosen, own.number)
        if len(chosen) < MIN_SITES:
            raise TooFewSites(
                f"In round {own.number} only {len(chosen)} of {len(pool.sites)} sites are left.",
                "Submit the job again when they are back; nothing of this round was opened.",
            )
    scale, found = len(pool.sites) / len(chosen), total
    return await pool.at_sites(lambda: own.applied(known(ready), known(model), known(found), scale)), history, chosen


async def _total(
    pool: Pool, options: "Train", own: Contribution, ready: Ready | Hidden, model: Model | Hidden,
    trained: Arrays | Hidden, chosen: Sequence[str], attempt: int,
) -> Vector | Hidden | tuple[str, ...]:  # fmt: skip
    """The sum of the chosen sites' contributions, or who is missing for it."""
    here, mine = pool.among(chosen), partial(own.encoded, pool.me, ready, model, trained, len(chosen))
    if options.model_for == "everyone":
        return await here.add(OPEN_UPDATE, FIELD61, own.length, mine, method=options.method)
    if not options.patience_s:
        return await here.add_hidden(UPDATE, FIELD61, own.length, mine)
    return await here.add_hidden_in_time(UPDATE, ABSENT, FIELD61, own.length, mine, options.patience_s, attempt)


def _chosen(pool: Pool, options: "Train", history: History, number: int) -> list[str]:
    """The sites of a round, of those that are left."""
    left = [site for site in pool.sites if site not in history.lost]
    return chosen_sites(left, options.sample, pool.public_seed, number)


def chosen_sites(sites: Sequence[str], count: int, public_seed: bytes, number: int) -> list[str]:
    """So many sites, by lot, in ring order; 0: all. Everyone can draw the lots again.

    Without one of them it is the others that were drawn, and the next by lot.
    """
    if not count or count >= len(sites):
        return list(sites)

    def lot(site: str) -> bytes:
        return hashlib.sha256(b"commonscale/v1/sample\0" + public_seed + b"%d\0" % number + site.encode()).digest()

    drawn = set(sorted(sites, key=lot)[:count])
    return [site for site in sites if site in drawn]


async def _evaluate(
    pool: Pool, options: "Train", sizes: Sizes, model: Model | Hidden, number: int
) -> evaluation.Metrics:
    """Step 4."""
    classes = len(options.classes)
    found = await pool.work(lambda: _order("evaluate", options, known(model), number))

    def mine() -> Vector:
        arrays = known(found)
        loss = float(arrays["loss"][0])
        try:
            return evaluation.encoded(
                classes, loss, arrays.get("confusion", _NONE), arrays.get("scores", _NONE), len(pool.sites)
            )
        except FixedPointOverflowError:
            raise diverged(pool.me, "its loss") from None

    reveal = OBSERVED_METRICS if options.observers else METRICS
    total = await pool.add(reveal, FIELD61, evaluation.length(classes), mine, method=options.method)
    return evaluation.pooled(number, classes, sizes.evaluation_rows, total)


_NONE = np.zeros(0, dtype=np.int64)


def _order(kind: str, options: "Train", model: Model, number: int) -> Order:
    arrays: Arrays = {"weights": model.weights.astype(options.precision)}
    if len(model.statistics.mean):
        arrays |= {"mean": model.statistics.mean, "variance": model.statistics.variance}
    return Order(kind, number, options.rounds, arrays)  # type: ignore[arg-type]
