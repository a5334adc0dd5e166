"""The space of a search: how work is split over ranks, and what trades time for memory.

The model and the global batch are fixed. The space only lists values that can be legal:
microbatches that divide the global batch, and numbers of chunks that divide the layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.nearest import divisors
from simtrain.scenario.section import Section
from simtrain.schedules import NAMED, default_name
from simtrain.studies.choose import is_open
from simtrain.studies.search.conditional import conditional_values
from simtrain.studies.search.stage_lengths import (
    EVEN,
    StageLengths,
    explicit_lengths,
    layers_of_model_end,
    lengths_to_try,
)

POLICIES = tuple(RecomputePolicy(strategy=name) for name in ("none", "selective", "full"))
ZERO_STAGES = (0, 1, 2, 3)
_QUESTION = ("name", "description", "model", "batch", "cluster", "hardware")
"""Sections of a scenario that are not part of a layout; the microbatch is."""
_SMALL_MICROS = 2
"""Microbatch sizes of a space's core."""
LONG_SEQUENCE = 32_768
"""Sequence length from which context parallelism is searched by default."""
LEAST_TOKENS = 4096
"""Fewest tokens per context-parallel rank by default."""

Prefix = tuple[Any, ...]
"""The first coordinates of a point."""


class Point(NamedTuple):
    """A layout: parallel sizes, chunks and lengths of stages, microbatch, recompute, ZeRO stage."""

    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    expert_tensor: int | None
    interleave: int
    first_stage_layers: int | None
    last_stage_layers: int | None
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
        self.conditional = conditional_values(base)
        """Settings of the base that some points cannot have, as functions of the point."""
        if _is_overridden(base, "parallelism.layout"):
            self.conditional.pop("parallelism.layout", None)
        self._asked = context, expert
        self._contexts = self._choices("context", context, self._contexts_by_default)
        self._experts = self._choices("expert", expert, self._experts_by_default)
        self._schedule_is_held = _is_overridden(base, "schedule")
        self._all_splits = [split for number in self.gpus for split in self._splits(number)]
        self._cuts = functools.cache(self._stage_cuts)
        self._others = {
            Point._fields.index(name): self._free(name, values)
            for name, values in {
                "micro": divisors(base.batch.global_),
                "sequence_parallel": (False, True),
                "zero_stage": ZERO_STAGES,
                "recompute": POLICIES,
            }.items()
        }
        self.axes = tuple(name for name in Point._fields if self._varies(name))
        """Coordinates that points set; the base determines the others."""
        self._section = functools.cache(self._new_section)
        self.values: dict[str, Any] = {
            "schedule": lambda point: self._schedule(point.interleave),
            "parallelism": {"scatter_gather": self._scatter_gather},
        }
        """Fields that differ between points, each as a function of the point."""
        for name in self.axes:
            self._enter(FIELDS[name], attrgetter(name))
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

    def core(self) -> Space:
        """Return the part of the space with small microbatches and without ZeRO stages 2 and 3."""
        core = Space(self.base, self.gpus, *self._asked)
        micro, zero_stage = Point._fields.index("micro"), Point._fields.index("zero_stage")
        core._others[micro] = self._others[micro][:_SMALL_MICROS]
        core._others[zero_stage] = self._others[zero_stage][:2]
        return core

    def choices(self, prefix: Prefix = ()) -> list[Prefix]:
        """The next coordinates of the points that begin with a prefix: one or several each.

        First come the splits over ranks, then the chunks and lengths of stages, then one coordinate
        at a time. A point is the concatenation of these choices.
        """
        if not prefix:
            return self._all_splits
        if len(prefix) == len(_SPLIT):
            return self._cuts(prefix[_SPLIT.index("pipeline")])
        return self._others[len(prefix)]

    def num_points(self, prefix: Prefix = ()) -> int:
        """Number of points that begin with a prefix, legal or not."""
        if len(prefix) <= len(_SPLIT):
            return sum(self.num_points(prefix + choice) for choice in self.choices(prefix))
        return math.prod(
            len(choices) for place, choices in self._others.items() if place >= len(prefix)
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

    def varied(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Fields that have several values among these points."""
        columns = zip(FIELDS.values(), zip(*points, strict=True), strict=True)
        return tuple(field for field, values in columns if len({*values}) > 1)

    def held_fields(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Fields with one value for all of these points, of those that belong to a layout.

        Fields without effect on these points are left out.
        """
        base, varied = self.base, self.varied(points)
        idle = {"parallelism.scatter_gather"}  # follows the point
        if base.model.experts is None:
            idle |= {f"parallelism.{name}" for name in ("expert", "expert_tensor")}
            idle.add("parallelism.expert_dispatch")
        if all(point.context == 1 for point in points):
            idle |= {"parallelism.context_communication", "parallelism.context_a2a"}
        if base.parallelism.layout is None:
            idle.add("parallelism.layout")
        if (base.parallelism.first_stage_layers, base.parallelism.last_stage_layers) == EVEN:
            idle |= {FIELDS[name] for name in StageLengths._fields}
        fields = [*FIELDS.values()]
        for section in filter(lambda name: name not in _QUESTION, type(base).model_fields):
            value = getattr(base, section)
            whole = section not in ("parallelism", "memory")
            fields += (
                [section] if whole else [f"{section}.{name}" for name in type(value).model_fields]
            )
        return tuple(field for field in dict.fromkeys(fields) if field not in {*varied, *idle})

    def left_out(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Settings of the base that some of these points do not have."""

        def differs(field: str) -> bool:
            section, inner, *_ = field.split(".")
            follows, written = self.values[section][inner], attrgetter(f"{section}.{inner}")
            return any(follows(point) != written(self.base) for point in points)

        return tuple(filter(differs, self.conditional))

    def _splits(self, num_gpus: int) -> Iterator[Prefix]:
        """The splits over a number of GPUs: the values of `_SPLIT`."""
        fixed = [place for place, name in enumerate(_SPLIT) if name in self.held]
        for context in self._contexts:
            groups, rest = divmod(num_gpus, context)
            if rest:
                continue
            for tensor in divisors(groups):
                for pipeline in divisors(groups // tensor):
                    data = groups // tensor // pipeline
                    for expert, expert_tensor in self._expert_splits(tensor):
                        split = tensor, pipeline, data, context, expert, expert_tensor
                        if all(split[place] == self._now[place] for place in fixed):
                            yield split

    def _expert_splits(self, tensor: int) -> Iterator[tuple[int, int | None]]:
        """Choices of expert-parallel ranks, and of ranks per expert: all of `tensor`, or 1."""
        now = self._now.expert_tensor
        shared = [now]
        if self._varies("expert_tensor") and "expert_tensor" not in self.held:
            shared = [*dict.fromkeys((tensor, 1, now or 1))]
        for expert in self._experts:
            for expert_tensor in shared:
                yield expert, expert_tensor

    def _choices(
        self, name: str, asked: Sequence[int] | None, by_default: Iterable[int]
    ) -> tuple[int, ...]:
        if name in self.held:
            return (getattr(self._now, name),)
        return tuple(by_default) if asked is None else tuple(sorted(set(asked)))

    def _stage_cuts(self, num_stages: int) -> list[Prefix]:
        """Numbers of chunks per stage with lengths of the first and last stage."""
        return [
            (interleave, *lengths)
            for (interleave,) in self._free("interleave", self._interleaves_by_default)
            for lengths in self._lengths(num_stages, interleave)
        ]

    def _lengths(self, num_stages: int, interleave: int) -> list[StageLengths]:
        """Lengths of the first and last stage to try; one set outside of the file keeps both."""
        split, layers = self.base.parallelism, self.base.model.num_layers
        written = StageLengths(split.first_stage_layers, split.last_stage_layers)
        if self.held.intersection(StageLengths._fields):
            return [written]
        if num_stages == 1 or self._has_layout(num_stages * interleave):
            return [EVEN]
        schedule = self._schedule(interleave)
        family = self.base.schedule_family if schedule == self.base.schedule else NAMED[schedule]
        placement = family.placement(num_stages, interleave)
        lengths = lengths_to_try(layers, placement, self._model_end)
        if num_stages == split.pipeline:
            explicit = explicit_lengths(written, layers, num_stages)
            lengths += [explicit] if explicit and explicit not in lengths else []
        return lengths

    def _has_layout(self, num_chunks: int) -> bool:
        """Whether the base's layout places the layers of points with this number of chunks."""
        chunks = len(self.base.parallelism.layout_chunks)
        is_kept = bool(chunks) and "parallelism.layout" not in self.conditional
        return is_kept or chunks == num_chunks

    @functools.cached_property
    def _model_end(self) -> float:
        return layers_of_model_end(self.base)

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
        return sorted({number for numbers in sizes for number in numbers if number <= most})

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
            case "first_stage_layers" | "last_stage_layers":
                return any(
                    getattr(StageLengths(*cut[1:]), name) != getattr(self._now, name)
                    for num_stages in {
                        split[_SPLIT.index("pipeline")] for split in self._all_splits
                    }
                    for cut in self._cuts(num_stages)
                )
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

    def _schedule(self, num_chunks: int) -> str:
        """The schedule for a number of chunks per stage, unless it was overridden."""
        if self._schedule_is_held or self.base.schedule_family.allows_chunks(num_chunks):
            return self.base.schedule
        return default_name(num_chunks)


def _is_overridden(scenario: Scenario, field: str) -> bool:
    """Whether a field, or a field within it, was set outside the scenario's file."""
    path, written = tuple(field.split(".")), scenario.positions.places.items()
    return any(at.value.line is None for where, at in written if where[: len(path)] == path)
