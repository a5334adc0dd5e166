"""Workers of a sweep: what computes the parts of one run, and the protocol of its kinds."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.studies.sweep.plan import SweepPlan


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` runs that share a sweep: every `count`-th part, from part `number` on."""

    number: int = 0
    count: int = 1

    @classmethod
    def of(cls, text: str) -> Shard:
        """Parse "i/n"; refuse anything else (E828)."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
        if match and int(match[1]) < int(match[2]):
            return cls(int(match[1]), int(match[2]))
        fix = "write 0/4 for the first of four shards, 3/4 for the last"
        raise InputError.of("E828", f'"{text}" is not a shard', Location("--shard"), fix)

    def parts(self, plan: SweepPlan) -> range:
        """The numbers of the shard's parts."""
        return range(self.number, plan.num_parts, self.count)

    def num_points(self, plan: SweepPlan) -> int:
        """Number of points in the shard's parts."""
        parts = self.parts(plan)
        missing = plan.num_parts * plan.part_size - plan.num_points
        has_last = bool(parts) and parts[-1] == plan.num_parts - 1
        return len(parts) * plan.part_size - missing * has_last

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class PartWorkers:
    """What computes the parts of a run.

    Args:
        start: creates an executor; called again when an executor breaks. One that loses a worker
            raises BrokenExecutor.
        num_in_flight: parts submitted at a time.
        shard: the share of the parts that this run computes.
    """

    start: Callable[[], Executor]
    num_in_flight: int = 1
    shard: Shard = Shard()


class ExecutorKind(Protocol):
    """A place that computes the parts of a sweep."""

    def open(
        self, plan: SweepPlan, shard: Shard, num_workers: int | None, address: str | None
    ) -> PartWorkers:
        """Return the workers of a run.

        Args:
            plan: the sweep.
            shard: the share of the parts that the user asked for.
            num_workers: parts that run at the same time; None takes every processor.
            address: host:port of the cluster, if the user gave one.

        Raises:
            InputError: something is missing or has no effect there (E854), or nothing answers.
        """
