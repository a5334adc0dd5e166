"""The best of what an optimizer proposes, where a space is too large to look at every point.

Optuna's tree-structured Parzen estimator asks and is told. It proposes a number between 0 and 1 for
each coordinate, which stands for one of the values that are legal after those chosen before it: so
that every proposal is legal, and near numbers are near values. The seed is fixed: the same search
finds the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simtrain.search.looker import Looker, Seen, Tell
from simtrain.search.space import Point

if TYPE_CHECKING:
    from optuna.trial import Trial

_SEED = 0
_TOO_LARGE = 1e30
"""Above all that fits; the optimizer looks at nothing but the order of values."""

Tree = dict[Any, Any]
"""The legal values of a coordinate, each with the tree of the next one's."""


def sampled(looker: Looker, points: Sequence[Point], num_trials: int, top: int, tell: Tell) -> Seen:
    """Look at what is proposed in so many trials, and find the `top` best of it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=_SEED))
    tree, seen = _tree(points), dict[Point, None]()
    for number in range(num_trials):
        tell("trials", number, num_trials)
        trial = study.ask()
        point = _proposed(trial, tree)
        study.tell(trial, _told(looker, point))
        seen[point] = None
    fitting = [point for point in seen if looker.fits(point)]
    if not fitting:
        return looker.nothing(len(seen), min(seen, key=looker.peak_bytes))
    return looker.seen(sorted(fitting, key=looker.key)[:top], len(seen), len(fitting))


def _tree(points: Sequence[Point]) -> Tree:
    tree: Tree = {}
    for point in points:
        below = tree
        for value in point:
            below = below.setdefault(value, {})
    return tree


def _proposed(trial: Trial, tree: Tree) -> Point:
    values: list[Any] = []
    for name in Point._fields:
        choices = list(tree)
        place = trial.suggest_float(name, 0, 1)
        values.append(choices[min(int(place * len(choices)), len(choices) - 1)])
        tree = tree[values[-1]]
    return Point(*values)


def _told(looker: Looker, point: Point) -> float:
    """The objective; for what does not fit more than that, and the more, the less it fits."""
    if looker.fits(point):
        return looker.key(point)[0]
    return _TOO_LARGE * (looker.peak_bytes(point) / looker.limit_bytes)
