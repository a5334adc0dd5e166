"""The result of a search for an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.schedules import Schedule


@dataclass(frozen=True, slots=True)
class NamedOrder(PlainData):
    """A named schedule of the same sizes, simulated with its own messages.

    Args:
        name: of the schedule.
        iteration_time_s: time of an iteration.
        peak_bytes: peak of the fullest stage.
        fits: whether the peak is within the limit.
    """

    json_fields: ClassVar = keys("name iteration_time_s peak_bytes fits")

    name: str
    iteration_time_s: float
    peak_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, eq=False)
class OptimizedOrder(PlainData):
    """The fastest order that was found, and what it is compared with.

    Args:
        schedule: the order.
        origin: how it was found: the name of a schedule, or "list scheduling", or "local search".
        iteration_time_s: time of an iteration.
        peak_bytes: peak of the fullest stage.
        limit_bytes: the largest peak that was allowed.
        bound_s: no order of these passes on these placements takes less.
        named: the named schedules of these sizes, the fastest first.
        num_tried: orders that were simulated.
        seed: of the local search.
        is_exact: for these durations, without waits of messages for each other, every order of
            these placements was solved for.
    """

    json_fields: ClassVar = keys(
        "origin iteration_time_s bound_s at_most_slower peak_bytes limit_bytes fits num_tried seed "
        "is_exact named"
    )

    schedule: Schedule
    origin: str
    iteration_time_s: float
    peak_bytes: int
    limit_bytes: int
    bound_s: float
    named: tuple[NamedOrder, ...]
    num_tried: int
    seed: int
    is_exact: bool = False

    @property
    def fits(self) -> bool:
        """Whether the order's peak is within the limit."""
        return self.peak_bytes <= self.limit_bytes

    @property
    def at_most_slower(self) -> float:
        """The most by which it can be slower than the best order, as a fraction of that one."""
        return self.iteration_time_s / self.bound_s - 1

    @property
    def best_named(self) -> NamedOrder | None:
        """The fastest named schedule that fits."""
        return next((named for named in self.named if named.fits), None)
