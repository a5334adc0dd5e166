"""The space of a search: how work is split over ranks, and what trades time for memory.

The model and the global batch are fixed. The space only lists values that can be legal:
microbatches that divide the global batch, and numbers of chunks that divide the layers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.nearest import divisors
from simtrain.scenario.section import Section
from simtrain.search.conditional import conditional_values
from simtrain.studies.choose import is_open

POLICIES = tuple(RecomputePolicy(strategy=name) for name in ("none", "selective", "full"))
ZERO_STAGES = (0, 1, 2, 3)
LONG_SEQUENCE = 32_768
"""Sequence length from which context parallelism is searched by default."""
LEAST_TOKENS = 4096
"""Fewest tokens per context-parallel rank by default."""

Prefix = tuple[Any, ...]
"""The first coordinates of a point."""


class Point(NamedTuple):
    """A layout: parallel sizes, interleave, microbatch, recompute and ZeRO stage."""

    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    expert_tensor: int | None
    interleave: int
    micro: int
    sequence_parallel: bool
    zero_stage: int
    recompute: RecomputePolicy

    @classmethod
    def of(cls, scenario: Scenario) -> Point:
        """Return the layout of a scenario."""
        return cls(*attrgetter(*FIELDS.values())(scenario))


_SECTIONS = {"micro": "batch.", "zero_stage": "memory.", "recompute": ""}
FIELDS = {name: _SECTIONS.get(name, "parallelism.") + name for name in Point._fields}
"""The field of a scenario for each coordinate of a point."""
_SPLIT = Point._fields[:6]
"""Coordinates that are chosen together."""


class Space:
    """Layouts around a base scenario for given numbers of GPUs.

    An overridden field (`--set batch.micro=1`) keeps its value.

    Args:
        base: the scenario.
        gpus: the numbers of GPUs.
        context: numbers of context-parallel ranks. By default 1 for short sequences; for long ones,
            or if the base has several ranks, all that leave `LEAST_TOKENS` per rank.
        expert: numbers of expert-parallel ranks. By default all that divide the model's experts.
    """

    def __init__(
        self,
        base: Scenario,
        gpus: tuple[int, ...],
        context: Sequence[int] | None = None,
        expert: Sequence[int] | None = None,
    ) -> None:
        self.base = base
        self.gpus = tuple(sorted(set(gpus)))
        self.held = {name for name, field in FIELDS.items() if _is_overridden(base, field)}
        self._now = Point.of(base)
        self._asked = context, expert
        self._contexts = self._choices("context", context, self._contexts_by_default)
        self._experts = self._choices("expert", expert, self._experts_by_default)
        self.axes = tuple(name for name in Point._fields if self._varies(name))
        """Coordinates that points set; the base determines the others."""
        self._schedule_is_held = _is_overridden(base, "schedule")
        self._section = functools.cache(self._new_section)
        self.values: dict[str, Any] = {
            "schedule": self._schedule,
            "parallelism": {"scatter_gather": self._scatter_gather},
        }
        """Fields that differ between points, each as a function of the point."""
        for name in self.axes:
            self._enter(FIELDS[name], attrgetter(name))
        self.conditional = {
            field: follows
            for field, follows in conditional_values(base).items()
            if not _is_overridden(base, field)
        }
        """Settings of the base that some points cannot have, as functions of the point."""
        for field, follows in self.conditional.items():
            self._enter(field, follows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the constructor's arguments."""
        return Space, (self.base, self.gpus, *self._asked)

    def on(self, gpus: tuple[int, ...]) -> Space:
        """Return the same space for other numbers of GPUs."""
        return Space(self.base, gpus, *self._asked)

    def within(self, memory: str) -> Space:
        """Return the space for GPUs with this capacity, so that `recompute: auto` fits in it."""
        if "recompute" not in self.held or not is_open(self.base):
            return self
        gpu = self.base.hardware.get("gpu", {}) | {"memory_capacity": memory}
        hardware = self.base.hardware | {"gpu": gpu}
        base = self.base.model_copy(update={"hardware": hardware})
        return Space(base, self.gpus, *self._asked)

    def levels(self) -> tuple[list[Prefix], ...]:
        """The choices per level: first the split over ranks, then one coordinate per level.

        A point is the concatenation of one choice per level.
        """
        return (
            [split for num_gpus in self.gpus for split in self._splits(num_gpus)],
            self._free("interleave", self._interleaves_by_default),
            self._free("micro", divisors(self.base.batch.global_)),
            self._free("sequence_parallel", (False, True)),
            self._free("zero_stage", ZERO_STAGES),
            self._free("recompute", POLICIES),
        )

    def scenario(self, point: Point) -> Scenario:
        """Build the scenario at a point and derive its defaults again; legality is not checked."""
        changes = {
            name: self._section(name, *[value(point) for value in follows.values()])
            if isinstance(follows, dict)
            else follows(point)
            for name, follows in self.values.items()
        }
        return self.base.model_copy(update=changes)

    def left_out(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Settings of the base that some of these points do not have."""

        def differs(field: str) -> bool:
            section, inner, *_ = field.split(".")
            follows, written = self.values[section][inner], attrgetter(f"{section}.{inner}")
            return any(follows(point) != written(self.base) for point in points)

        return tuple(filter(differs, self.conditional))

    def _splits(self, num_gpus: int) -> Iterator[Prefix]:
        """The splits over a number of GPUs: the values of `_SPLIT`."""
        held = [place for place, name in enumerate(_SPLIT) if name in self.held]
        for context in self._contexts:
            groups, rest = divmod(num_gpus, context)
            if rest:
                continue
            for tensor in divisors(groups):
                for pipeline in divisors(groups // tensor):
                    data = groups // tensor // pipeline
                    for expert, expert_tensor in self._expert_splits(tensor):
                        split = tensor, pipeline, data, context, expert, expert_tensor
                        if all(split[place] == self._now[place] for place in held):
                            yield split

    def _expert_splits(self, tensor: int) -> Iterator[tuple[int, int | None]]:
        """Choices of expert-parallel ranks, and of ranks per expert: all of `tensor`, or 1."""
        given = self._now.expert_tensor
        shared = [given]
        if "expert_tensor" in self.axes and "expert_tensor" not in self.held:
            shared = [*dict.fromkeys((tensor, 1, given or 1))]
        for expert in self._experts:
            for expert_tensor in shared:
                yield expert, expert_tensor

    def _choices(
        self, name: str, asked: Sequence[int] | None, by_default: Iterable[int]
    ) -> tuple[int, ...]:
        if name in self.held:
            return (getattr(self._now, name),)
        return tuple(by_default) if asked is None else tuple(sorted(set(asked)))

    @property
    def _interleaves_by_default(self) -> list[int]:
        # A layout may have any number of chunks.
        return sorted({*divisors(self.base.model.num_layers), self._now.interleave})

    @property
    def _contexts_by_default(self) -> list[int]:
        now, length = self._now.context, self.base.model.seq_length
        if now == 1 and length < LONG_SEQUENCE:
            return [1]
        most, sizes = max(now, length // LEAST_TOKENS), map(divisors, self.gpus)
        return sorted({one for size in sizes for one in size if one <= most})

    @property
    def _experts_by_default(self) -> list[int]:
        experts = self.base.model.experts
        return [self._now.expert] if experts is None else divisors(experts.num)

    def _varies(self, name: str) -> bool:
        """Whether points can differ from the base in a coordinate."""
        match name:
            case "context":
                return self._contexts != (self._now.context,)
            case "expert":
                return self._experts != (self._now.expert,)
            case "expert_tensor":
                return self.base.model.experts is not None
            case _:
                return True

    def _enter(self, field: str, follows: Any) -> None:
        # A nested field is set together with its section.
        section, *inner = field.split(".")
        inside = self.values.setdefault(section, {}) if inner else self.values
        inside[inner[0] if inner else section] = follows

    def _free(self, name: str, values: Iterable[Any]) -> list[Prefix]:
        values = [getattr(self._now, name)] if name in self.held else values
        return [(value,) for value in values]

    def _new_section(self, name: str, *values: Any) -> Section:
        section: Section = getattr(self.base, name)
        return section.model_copy(update=dict(zip(self.values[name], values, strict=True)))

    def _scatter_gather(self, point: Point) -> bool:
        """On, unless the file turns it off or sequence parallelism already splits the output."""
        split = self.base.parallelism
        is_off = "scatter_gather" in split.model_fields_set and not split.scatter_gather
        return not (point.sequence_parallel or is_off)

    def _schedule(self, point: Point) -> str:
        """The schedule for the point's number of chunks, unless it was overridden."""
        is_interleaved, given = point.interleave > 1, self.base.schedule
        if self._schedule_is_held:
            return given
        if is_interleaved:
            return "interleaved"
        return "1f1b" if given == "interleaved" else given


def _is_overridden(scenario: Scenario, field: str) -> bool:
    """Whether a field, or a field within it, was set outside the scenario's file."""
    path, written = tuple(field.split(".")), scenario.positions.places.items()
    return any(at.value.line is None for where, at in written if where[: len(path)] == path)
