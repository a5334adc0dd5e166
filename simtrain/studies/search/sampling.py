"""Search of a space by an optimizer's proposals, for spaces that are too large to search fully.

Optuna's tree-structured Parzen estimator proposes a number between 0 and 1 for each coordinate. The
number selects one of the values that are legal after the coordinates before it, so every proposal
is legal and close numbers select close values. The estimator repeats good proposals; a random point
replaces a repeated one, and the estimator learns its result too. Seeds are fixed, so results are
deterministic.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simtrain.base.extras import require
from simtrain.studies.search.explorer import (
    NUM_FASTER,
    Explorer,
    ProgressCallback,
    SearchOutcome,
)
from simtrain.studies.search.search_end import End, Stop
from simtrain.studies.search.space import Point

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

_SEED = 0
_TOO_LARGE = 1e30
"""Penalty above every value that fits; the optimizer only uses the order of values."""

Tree = dict[Any, Any]
"""Legal values of a coordinate; each has the tree of the next coordinate's values."""


def search_samples(
    explorer: Explorer,
    points: Sequence[Point],
    num_trials: int,
    top: int,
    on_progress: ProgressCallback,
    stop: Stop,
) -> SearchOutcome:
    """Evaluate `num_trials` of the points, fewer than all, and find the `top` best of them.

    At least one point is evaluated, even if the search is stopped. Needs optuna (E701).
    """
    require("a search by trials", "optuna", instead=", or search without trials")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=_SEED))
    tree, unseen = _tree(points), dict.fromkeys(points)
    names = (*explorer.space.axes, *["settings"] * (len(explorer.space.all_settings) > 1))
    shuffled = random.Random(_SEED).sample(points, len(points))
    end = End.TRIALS
    for number in range(num_trials):
        on_progress("trials", number, num_trials, "")
        if number and (why := stop()):
            end = why
            break
        trial, point = _ask(study, tree, names)
        if point not in unseen:
            study.tell(trial, _loss(explorer, point))
            study.enqueue_trial(_places(next(new for new in shuffled if new in unseen), tree))
            trial, point = _ask(study, tree, names)
        study.tell(trial, _loss(explorer, point))
        del unseen[point]
    seen = [point for point in points if point not in unseen]
    fitting = [point for point in seen if explorer.fits(point)]
    if not fitting:
        nearest = min(seen, key=explorer.peak_bytes)
        return SearchOutcome((), len(seen), 0, len(explorer.evaluations), end, nearest)
    ranked = sorted(fitting, key=explorer.key)
    safe = [point for point in ranked if explorer.peak_bytes(point) <= explorer.safe_bytes]
    faster = ranked[: ranked.index(safe[0])] if safe else []
    return SearchOutcome(
        explorer.candidates((safe or ranked)[:top]),
        len(seen),
        len(fitting),
        len(explorer.evaluations),
        end,
        faster=explorer.candidates(faster[:NUM_FASTER]),
    )


def _tree(points: Sequence[Point]) -> Tree:
    tree: Tree = {}
    for point in points:
        functools.reduce(lambda below, value: below.setdefault(value, {}), point, tree)
    return tree


def _ask(study: Study, tree: Tree, names: Sequence[str]) -> tuple[Trial, Point]:
    """Get a proposal for the coordinates with these names; the others have a single value."""
    trial, values = study.ask(), list[Any]()
    for name in Point._fields:
        choices = list(tree)
        place = trial.suggest_float(name, 0, 1) if name in names else 0.0
        values.append(choices[min(int(place * len(choices)), len(choices) - 1)])
        tree = tree[values[-1]]
    return trial, Point(*values)


def _places(point: Point, tree: Tree) -> dict[str, float]:
    """The numbers that select a point."""
    places: dict[str, float] = {}
    for name, value in zip(Point._fields, point, strict=True):
        choices = list(tree)
        places[name] = (choices.index(value) + 0.5) / len(choices)
        tree = tree[value]
    return places


def _loss(explorer: Explorer, point: Point) -> float:
    """The objective, or a penalty that grows with the memory overshoot."""
    if explorer.fits(point) and explorer.runs(point):
        return explorer.key(point)[0]
    return _TOO_LARGE * (explorer.peak_bytes(point) / explorer.limit_bytes)
