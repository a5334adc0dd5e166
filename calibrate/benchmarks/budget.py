"""Divides the time of a measurement among its parts, and leaves out what is useful least."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from calibrate.records.file import MeasurementPoint


@dataclass(frozen=True, slots=True)
class Share:
    """The points of a part, most useful first, and its share of the time, relative to others."""

    weight: float
    points: Sequence[MeasurementPoint]


def in_time(
    shares: Sequence[Share], budget_s: float, clock: Callable[[], float]
) -> Iterator[MeasurementPoint]:
    """The points to measure, one after another, until `budget_s` are over by the `clock`.

    A part that needs less than its share leaves the rest to the parts after it. Points beyond a
    part's share come last, if there is time. A point that has begun is never interrupted.
    """
    deadline_s, late = clock() + budget_s, list[MeasurementPoint]()
    for number, share in enumerate(shares):
        now_s, weights = clock(), sum(each.weight for each in shares[number:])
        until_s = now_s + (deadline_s - now_s) * share.weight / weights
        points = iter(share.points)
        for point in points:
            if clock() >= until_s:
                late += [point, *points]
                break
            yield point
    for point in late:
        if clock() >= deadline_s:
            return
        yield point
