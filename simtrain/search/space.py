"""The configurations that a search looks at: how the work is split, what trades time for memory.

Model and global batch stay. Values are listed only where they can be legal: microbatches that
divide the global batch, numbers of chunks that divide the layers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from simtrain.scenario import RecomputePolicy, Scenario, ScheduleName
from simtrain.scenario.nearest import divisors
from simtrain.scenario.section import Section
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
        """The configuration of a scenario."""
        return cls(*attrgetter(*FIELDS.values())(scenario))


_SECTIONS = {"micro": "batch.", "zero_stage": "memory.", "recompute": ""}
FIELDS = {name: _SECTIONS.get(name, "parallelism.") + name for name in Point._fields}
"""The field of a scenario for each coordinate of a point."""


class Space:
    """What can be searched around a scenario, on any of some numbers of GPUs.

    A field that was overridden (`--set batch.micro=1`) keeps that value.
    """

    def __init__(self, base: Scenario, gpus: tuple[int, ...]) -> None:
        self.base = base
        self.gpus = tuple(sorted(set(gpus)))
        self.held = {name for name, field in FIELDS.items() if _is_overridden(base, field)}
        self._now = Point.of(base)
        self._schedule_is_held = _is_overridden(base, "schedule")
        self._section = functools.cache(self._new_section)
        self.values: dict[str, Any] = {
            "schedule": self._schedule,
            "parallelism": {"scatter_gather": self._scatter_gather},
        }
        """For each field that differs between points, its value as a function of the point."""
        for name, path in FIELDS.items():
            section, _, field = path.partition(".")
            inside = self.values.setdefault(section, {}) if field else self.values
            inside[field or section] = attrgetter(name)

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
        changes = {
            name: self._section(name, *[value(point) for value in follows.values()])
            if isinstance(follows, dict)
            else follows(point)
            for name, follows in self.values.items()
        }
        return self.base.model_copy(update=changes)

    def _splits(self, num_gpus: int) -> list[Prefix]:
        """Tensor, pipeline and data that make the number of GPUs with the base's context."""
        held = [number for number, name in enumerate(Point._fields[:3]) if name in self.held]
        groups, rest = divmod(num_gpus, self.base.parallelism.context)
        if rest:
            return []
        splits = (
            (tensor, pipeline, groups // tensor // pipeline)
            for tensor in divisors(groups)
            for pipeline in divisors(groups // tensor)
        )
        return [split for split in splits if all(split[one] == self._now[one] for one in held)]

    def _free(self, name: str, values: Iterable[Any]) -> list[Prefix]:
        values = [getattr(self._now, name)] if name in self.held else values
        return [(value,) for value in values]

    def _new_section(self, name: str, *values: Any) -> Section:
        section: Section = getattr(self.base, name)
        return section.model_copy(update=dict(zip(self.values[name], values, strict=True)))

    def _scatter_gather(self, point: Point) -> bool:
        """On, unless the file turns it off or sequence parallelism splits the output already."""
        split = self.base.parallelism
        is_off = "scatter_gather" in split.model_fields_set and not split.scatter_gather
        return not (point.sequence_parallel or is_off)

    def _schedule(self, point: Point) -> ScheduleName:
        """The schedule that runs the point's number of chunks, unless it was overridden."""
        is_interleaved, given = point.interleave > 1, self.base.schedule
        if self._schedule_is_held:
            return given
        if is_interleaved:
            return "interleaved"
        return "1f1b" if given == "interleaved" else given


def _is_overridden(scenario: Scenario, field: str) -> bool:
    """Whether a field, or one within it, was set from outside its file."""
    path, written = tuple(field.split(".")), scenario.positions.values.items()
    return any(at.line is None for where, at in written if where[: len(path)] == path)
