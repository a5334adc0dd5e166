"""The best of what an optimizer proposes, where a space is too large to look at every point.

Optuna's tree-structured Parzen estimator asks and is told. It proposes a number between 0 and 1 for
each coordinate, which stands for one of the values that are legal after those chosen before it: so
that every proposal is legal, and near numbers are near values. Once it has found something good it
proposes that again and again; a point at random then takes the place of one that has been seen, and
the estimator is told of it too. Seeds are fixed: the same search finds the same.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simtrain.extras import require
from simtrain.search.looker import Looker, Seen, Stop, Tell
from simtrain.search.space import Point

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

_SEED = 0
_TOO_LARGE = 1e30
"""Above all that fits; the optimizer looks at nothing but the order of values."""

Tree = dict[Any, Any]
"""The legal values of a coordinate, each with the tree of the next one's."""


def sampled(
    looker: Looker, points: Sequence[Point], num_trials: int, top: int, tell: Tell, stop: Stop
) -> Seen:
    """Look at so many of the points, fewer than there are, and find the `top` best of these.

    At least one is looked at before it stops.

    Raises:
        InputError: optuna is not installed.
    """
    require("a search by trials", "optuna", instead=", or search without trials")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=_SEED))
    tree, unseen = _tree(points), dict.fromkeys(points)
    shuffled = random.Random(_SEED).sample(points, len(points))
    stopped = None
    for number in range(num_trials):
        tell("trials", number, num_trials, "")
        if number and (stopped := stop()):
            break
        trial, point = _ask(study, tree, looker.space.axes)
        if point not in unseen:
            study.tell(trial, _told(looker, point))
            study.enqueue_trial(_places(next(one for one in shuffled if one in unseen), tree))
            trial, point = _ask(study, tree, looker.space.axes)
        study.tell(trial, _told(looker, point))
        del unseen[point]
    seen = [point for point in points if point not in unseen]
    fitting = [point for point in seen if looker.fits(point)]
    if not fitting:
        nearest = min(seen, key=looker.peak_bytes)
        return Seen((), len(seen), 0, len(looker.evaluations), nearest, stopped)
    best = looker.found(sorted(fitting, key=looker.key)[:top])
    return Seen(best, len(seen), len(fitting), len(looker.evaluations), stopped=stopped)


def _tree(points: Sequence[Point]) -> Tree:
    tree: Tree = {}
    for point in points:
        functools.reduce(lambda below, value: below.setdefault(value, {}), point, tree)
    return tree


def _ask(study: Study, tree: Tree, names: Sequence[str]) -> tuple[Trial, Point]:
    """A proposal of the coordinates with these names; the others have a single value."""
    trial, values = study.ask(), list[Any]()
    for name in Point._fields:
        choices = list(tree)
        place = trial.suggest_float(name, 0, 1) if name in names else 0.0
        values.append(choices[min(int(place * len(choices)), len(choices) - 1)])
        tree = tree[values[-1]]
    return trial, Point(*values)


def _places(point: Point, tree: Tree) -> dict[str, float]:
    """The numbers that stand for a point."""
    places: dict[str, float] = {}
    for name, value in zip(Point._fields, point, strict=True):
        choices = list(tree)
        places[name] = (choices.index(value) + 0.5) / len(choices)
        tree = tree[value]
    return places


def _told(looker: Looker, point: Point) -> float:
    """The objective; for what does not fit more than that, and the more, the less it fits."""
    if looker.fits(point):
        return looker.key(point)[0]
    return _TOO_LARGE * (looker.peak_bytes(point) / looker.limit_bytes)
