"""The best of a whole space, with no more simulated than certainty needs."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from simtrain.search.bounds import Bounds
from simtrain.search.looker import Looker, Seen, Tell
from simtrain.search.objective import Objective
from simtrain.search.space import Point


def exhaustive(
    looker: Looker, bounds: Bounds, points: Sequence[Point], top: int, tell: Tell
) -> Seen:
    """Look at every point, and find the `top` best, exactly.

    Memory comes first, and is not looked at where its lower bound is already too much.
    """
    fitting: list[Point] = []
    for number, point in enumerate(points):
        tell("memory", number, len(points))
        bound = bounds.peak_bytes(looker.space.scenario(point))
        if bound <= looker.limit_bytes and looker.fits(point):
            fitting.append(point)
    if not fitting:
        return looker.seen([], len(points), 0, _nearest(looker, bounds, points))
    return looker.seen(_best(looker, bounds, fitting, top, tell), len(points), len(fitting))


def _best(
    looker: Looker, bounds: Bounds, points: Sequence[Point], top: int, tell: Tell
) -> list[Point]:
    """From the smallest lower bound on, until that is above the last of the best: none after it
    can be better."""
    bounded = sorted((_bound(looker, bounds, point), place) for place, point in enumerate(points))
    best: list[tuple[tuple[float, float], int, Point]] = []  # keys, and places between equals
    for number, (bound, place) in enumerate(bounded):
        if len(best) == top and bound > best[-1][0][0]:
            break
        tell("time", number, len(points))
        insort(best, (looker.key(points[place]), place, points[place]))
        del best[top:]
    return [point for _, _, point in best]


def _bound(looker: Looker, bounds: Bounds, point: Point) -> float:
    """A lower bound of the objective; the peak itself is known."""
    if looker.objective is Objective.MEMORY:
        return looker.peak_bytes(point)
    scenario = looker.space.scenario(point)
    return looker.objective.of_time(scenario, bounds.time_s(scenario))


def _nearest(looker: Looker, bounds: Bounds, points: Sequence[Point]) -> Point:
    """The point with the smallest peak: only where a lower bound is below it need be looked."""
    bounded = sorted(
        (bounds.peak_bytes(looker.space.scenario(point)), place)
        for place, point in enumerate(points)
    )
    nearest = points[bounded[0][1]]
    for bound, place in bounded:
        if bound >= looker.peak_bytes(nearest):
            break
        nearest = min(nearest, points[place], key=looker.peak_bytes)
    return nearest
