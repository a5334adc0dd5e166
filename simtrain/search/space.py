"""The configurations that a search looks at: how the work is split, what trades time for memory.

Model and global batch stay. Values are listed only where they can be legal: microbatches that
divide the global batch, numbers of chunks that divide the layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from simtrain.scenario import Batch, MemoryOptions, Parallelism, RecomputePolicy, Scenario
from simtrain.scenario.schema import ScheduleName
from simtrain.studies.choose import is_open

POLICIES = tuple(RecomputePolicy(strategy=name) for name in ("none", "selective", "full"))
ZERO_STAGES = (0, 1, 2, 3)

Prefix = tuple[Any, ...]
"""The first coordinates of a point."""


class Point(NamedTuple):
    """One configuration."""

    tensor: int
    pipeline: int
    data: int
    interleave: int
    micro: int
    sequence_parallel: bool
    zero_stage: int
    recompute: RecomputePolicy

    @classmethod
    def of(cls, scenario: Scenario) -> Point:
        """The configuration that a scenario has."""
        split = scenario.parallelism
        return cls(
            split.tensor,
            split.pipeline,
            split.data,
            split.interleave,
            scenario.batch.micro,
            split.sequence_parallel,
            scenario.memory.zero_stage,
            scenario.recompute,
        )


FIELDS: dict[str, tuple[str, ...]] = {
    "tensor": ("parallelism", "tensor"),
    "pipeline": ("parallelism", "pipeline"),
    "data": ("parallelism", "data"),
    "interleave": ("parallelism", "interleave"),
    "micro": ("batch", "micro"),
    "sequence_parallel": ("parallelism", "sequence_parallel"),
    "zero_stage": ("memory", "zero_stage"),
    "recompute": ("recompute",),
}
"""Where a scenario has each coordinate of a point."""


class Space:
    """What can be searched around a scenario, on any of some numbers of GPUs.

    A field that was overridden (`--set batch.micro=1`) keeps that value.
    """

    def __init__(self, base: Scenario, gpus: tuple[int, ...]) -> None:
        self.base = base
        self.gpus = tuple(sorted(set(gpus)))
        self.held = {name for name, path in FIELDS.items() if _is_overridden(base, path)}
        self._schedule_is_held = _is_overridden(base, ("schedule",))
        self._parallelism = functools.cache(self._new_parallelism)
        self._batch = functools.cache(self._new_batch)
        self._memory = functools.cache(self._new_memory)

    def within(self, memory: str) -> Space:
        """The space on GPUs with no more memory than this, which open recompute then fits in."""
        if "recompute" not in self.held or not is_open(self.base):
            return self
        gpu = self.base.hardware.get("gpu", {}) | {"memory_capacity": memory}
        hardware = self.base.hardware | {"gpu": gpu}
        return Space(self.base.model_copy(update={"hardware": hardware}), self.gpus)

    def levels(self) -> tuple[list[Prefix], ...]:
        """What is chosen one after another: tensor, pipeline and data together, then the rest.

        A point is one choice of each level, joined.
        """
        return (
            [split for num_gpus in self.gpus for split in self._splits(num_gpus)],
            self._free("interleave", divisors(self.base.model.num_layers)),
            self._free("micro", divisors(self.base.batch.global_)),
            self._free("sequence_parallel", (False, True)),
            self._free("zero_stage", ZERO_STAGES),
            self._free("recompute", POLICIES),
        )

    def scenario(self, point: Point) -> Scenario:
        """The base at a point, its defaults derived anew; whether it is legal is not asked."""
        return self.base.model_copy(
            update={
                "parallelism": self._parallelism(*point[:4], point.sequence_parallel),
                "batch": self._batch(point.micro),
                "memory": self._memory(point.zero_stage),
                "recompute": point.recompute,
                "schedule": self._schedule(point.interleave),
            }
        )

    def _splits(self, num_gpus: int) -> list[Prefix]:
        """Tensor, pipeline and data whose product is the number of GPUs."""
        now = Point.of(self.base)
        held = [number for number, name in enumerate(Point._fields[:3]) if name in self.held]
        splits = (
            (tensor, pipeline, num_gpus // (tensor * pipeline))
            for tensor in divisors(num_gpus)
            for pipeline in divisors(num_gpus // tensor)
        )
        return [split for split in splits if all(split[one] == now[one] for one in held)]

    def _free(self, name: str, values: Iterable[Any]) -> list[Prefix]:
        now = getattr(Point.of(self.base), name)
        return [(now,)] if name in self.held else [(value,) for value in values]

    def _new_parallelism(
        self, tensor: int, pipeline: int, data: int, interleave: int, sequence_parallel: bool
    ) -> Parallelism:
        split = self.base.parallelism
        # As by default, but for a file that turns it off.
        is_off = "scatter_gather" in split.model_fields_set and not split.scatter_gather
        return split.model_copy(
            update={
                "tensor": tensor,
                "pipeline": pipeline,
                "data": data,
                "interleave": interleave,
                "sequence_parallel": sequence_parallel,
                "scatter_gather": not (sequence_parallel or is_off),
            }
        )

    def _new_batch(self, micro: int) -> Batch:
        return self.base.batch.model_copy(update={"micro": micro})

    def _new_memory(self, zero_stage: int) -> MemoryOptions:
        return self.base.memory.model_copy(update={"zero_stage": zero_stage})

    def _schedule(self, interleave: int) -> ScheduleName:
        """The schedule that runs so many chunks, unless it was overridden."""
        if self._schedule_is_held:
            return self.base.schedule
        if interleave > 1:
            return "interleaved"
        return "1f1b" if self.base.schedule == "interleaved" else self.base.schedule


def divisors(number: int) -> list[int]:
    """The divisors of a number, ascending."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def _is_overridden(scenario: Scenario, path: tuple[str, ...]) -> bool:
    """Whether the field at a path, or one within it, was set from outside its file."""
    written = scenario.positions.values.items()
    return any(at.line is None for where, at in written if where[: len(path)] == path)
