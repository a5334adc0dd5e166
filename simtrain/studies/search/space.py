"""The space of a search: how work is split over ranks, and what trades time for memory.

The model and the global batch are fixed. The space only lists values that can be legal:
microbatches that divide the global batch, and numbers of chunks that divide the layers or for which
there is a pipeline layout. Fields that are not coordinates have several values in variants: spaces
with another base.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.nearest import divisors
from simtrain.scenario.section import Section
from simtrain.schedules import NAMED, default_name
from simtrain.studies.changes.change import Change, combinations_of
from simtrain.studies.changes.policies import POLICIES
from simtrain.studies.changes.values import ZERO_STAGES
from simtrain.studies.choose import is_open
from simtrain.studies.search.conditional import conditional_values
from simtrain.studies.search.stage_lengths import (
    EVEN,
    StageLengths,
    balanced_layout,
    explicit_lengths,
    layers_of_model_end,
    lengths_to_try,
)

_QUESTION = ("name", "description", "program", "model", "batch", "cluster", "hardware", "variation")
"""Sections of a scenario that are not part of a layout; the microbatch is."""
LONG_SEQUENCE = 32_768
"""Sequence length from which context parallelism is searched by default."""
LEAST_TOKENS = 4096
"""Fewest tokens per context-parallel rank by default."""
_UNEVEN_CHUNKS = range(2, 5)
"""Numbers of chunks per stage that a pipeline layout divides, if stages cannot be even."""
_LISTED = ("parallelism.", "memory.")
"""Sections whose held fields are listed one by one."""

Prefix = tuple[Any, ...]
"""The first coordinates of a point."""
Settings = tuple[tuple[str, Any], ...]
"""Fields that are not coordinates, each with its value."""


class Point(NamedTuple):
    """A layout: parallel sizes, chunks and lengths of stages, microbatch, recompute, ZeRO stage.

    `settings` says of which variant of a space it is a point.
    """

    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    expert_tensor: int | None
    interleave: int
    first_stage_layers: int | None
    last_stage_layers: int | None
    layout: str | None
    schedule: str
    micro: int
    sequence_parallel: bool
    zero_stage: int
    recompute: RecomputePolicy
    settings: Settings = ()

    @classmethod
    def of(cls, scenario: Scenario) -> Point:
        """Return the layout of a scenario."""
        return cls(*attrgetter(*FIELDS.values())(scenario))


COORDINATES = Point._fields[:-1]
_SECTIONS = {"micro": "batch.", "zero_stage": "memory.", "recompute": "", "schedule": ""}
FIELDS = {name: _SECTIONS.get(name, "parallelism.") + name for name in COORDINATES}
"""The field of a scenario for each coordinate of a point."""
_SPLIT = COORDINATES[:6]
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
        vary: values of fields, instead of the default ones.
        hold: fields and sections that keep the base's values.
        settings: the variant of a space that this space is.
    """

    def __init__(
        self,
        base: Scenario,
        gpus: tuple[int, ...],
        context: Sequence[int] | None = None,
        expert: Sequence[int] | None = None,
        vary: Mapping[str, Sequence[Any]] = MappingProxyType({}),
        hold: Sequence[str] = (),
        settings: Settings = (),
    ) -> None:
        self.base = base
        self.gpus = tuple(sorted(set(gpus)))
        self._vary = {name: vary[field] for name, field in FIELDS.items() if field in vary}
        self.held = {
            name
            for name, field in FIELDS.items()
            if name not in self._vary and (_is_overridden(base, field) or is_within(field, hold))
        }
        self._now = Point.of(base)
        self.settings = settings
        others = {field: vary[field] for field in vary if field not in FIELDS.values()}
        self.all_settings: tuple[Settings, ...] = tuple(
            tuple(change.values.items()) for change in combinations_of(others)
        )
        """The settings of the variants; of one without any if no such field is varied."""
        self.conditional = conditional_values(base, {of: name for name, of in FIELDS.items()})
        """Settings of the base that some points cannot have, as functions of the point."""
        for field, _ in settings:
            self.conditional.pop(field, None)
        if self.held.intersection(("layout",)):
            self.conditional.pop("parallelism.layout", None)
        self._asked = context, expert, dict(vary), tuple(hold)
        self._contexts = self._choices("context", context, self._contexts_by_default)
        self._experts = self._choices("expert", expert, self._experts_by_default)
        self._cuts = functools.cache(self._stage_cuts)
        self.variant = functools.cache(self._new_variant)
        self._others = {
            COORDINATES.index(name): self._free(name, values)
            for name, values in {
                "micro": divisors(base.batch.global_),
                "sequence_parallel": (False, True),
                "zero_stage": ZERO_STAGES,
                "recompute": POLICIES,
            }.items()
        }
        self._section = functools.cache(self._new_section)

    @functools.cached_property
    def _all_splits(self) -> list[Prefix]:
        return [split for number in self.gpus for split in self._splits(number)]

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """Coordinates that points set; the base determines the others."""
        return tuple(name for name in COORDINATES if self._varies(name))

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """Fields that differ between points, each as a function of the point."""
        values: dict[str, Any] = {"parallelism": {"scatter_gather": self._scatter_gather}}
        fields = {FIELDS[name]: attrgetter(name) for name in self.axes} | self.conditional
        if (of_base := self.conditional.get("parallelism.layout")) is not None:
            fields["parallelism.layout"] = lambda point: point.layout or of_base(point)
        for field, follows in fields.items():
            # A nested field is set together with its section.
            section, *inner = field.split(".")
            inside = values.setdefault(section, {}) if inner else values
            inside[inner[0] if inner else section] = follows
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the constructor's arguments."""
        return Space, (self.base, self.gpus, *self._asked, self.settings)

    def on(self, gpus: tuple[int, ...]) -> Space:
        """Return the same space for other numbers of GPUs."""
        return Space(self.base, gpus, *self._asked)

    def _new_variant(self, settings: Settings) -> Space:
        """Return the space whose base has these settings.

        Raises:
            InputError: a setting is invalid.
        """
        if settings == self.settings:
            return self
        context, expert, vary, hold = self._asked
        coordinates = {field: vary[field] for field in vary if field in FIELDS.values()}
        base = Change(dict(settings)).applied_to(self.base)
        variant = Space(base, self.gpus, context, expert, coordinates, hold, settings)
        if settings not in self.all_settings:
            # A change of one of its layouts: it lists none itself.
            variant.axes = self.variant(settings[: len(self.all_settings[0])]).axes
        return variant

    @property
    def bases(self) -> list[Scenario]:
        """The scenario with each of the settings."""
        others = (each for each in self.all_settings if each != self.settings)
        return [self.base, *(self.variant(each).base for each in others)]

    def within(self, memory: str) -> Space:
        """Return the space for GPUs with this capacity, so that `recompute: auto` fits in it."""
        if "recompute" not in self.held or not is_open(self.base):
            return self
        gpu = self.base.hardware.get("gpu", {}) | {"memory_capacity": memory}
        hardware = self.base.hardware | {"gpu": gpu}
        base = self.base.model_copy(update={"hardware": hardware})
        return Space(base, self.gpus, *self._asked)

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
        if point.settings != self.settings:
            return self.variant(point.settings).scenario(point)
        changes = {
            name: self._section(name, *[value(point) for value in follows.values()])
            if isinstance(follows, dict)
            else follows(point)
            for name, follows in self.values.items()
        }
        return self.base.model_copy(update=changes)

    def varied(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Fields that have several values among these points."""
        columns = (
            (field, {getattr(point, name) for point in points}) for name, field in FIELDS.items()
        )
        varied = [field for field, values in columns if len(values) > 1]
        if len({point.settings for point in points}) > 1:
            varied += [field for field, _ in self.all_settings[0]]
        return tuple(varied)

    def held_fields(self, points: Sequence[Point], refined: Sequence[str] = ()) -> tuple[str, ...]:
        """Fields with one value for all of these points, of those that belong to a layout.

        Fields without effect on these points are left out, and `refined` ones.
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
            whole = not any(field.startswith(f"{section}.") for field in (*refined, *_LISTED))
            fields += (
                [section] if whole else [f"{section}.{name}" for name in type(value).model_fields]
            )
        left_out = {*varied, *idle, *refined}
        return tuple(field for field in dict.fromkeys(fields) if field not in left_out)

    def left_out(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Settings of the base that some of these points do not have."""

        def differs(field: str) -> bool:
            """Whether some points have another value than the base."""
            section, inner, *_ = field.split(".")
            written = attrgetter(f"{section}.{inner}")(self.base)
            follows = [
                self.variant(settings).values[section].get(inner) for settings in self.all_settings
            ]
            of_settings = dict(zip(self.all_settings, follows, strict=True))
            return any(
                follow(point) != written
                for point in points
                if (follow := of_settings[point.settings]) is not None
            )

        return tuple(filter(differs, self.conditional))

    def _splits(self, num_gpus: int) -> Iterator[Prefix]:
        """The splits over a number of GPUs: the values of `_SPLIT`."""
        allowed = [
            (place, self._vary.get(name, [getattr(self._now, name)]))
            for place, name in enumerate(_SPLIT)
            if name in self.held or name in self._vary
        ]
        for context in self._contexts:
            groups, rest = divmod(num_gpus, context)
            if rest:
                continue
            for tensor in divisors(groups):
                for pipeline in divisors(groups // tensor):
                    data = groups // tensor // pipeline
                    for expert, expert_tensor in self._expert_splits(tensor):
                        split = tensor, pipeline, data, context, expert, expert_tensor
                        if all(split[place] in values for place, values in allowed):
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
        asked = self._vary.get(name, asked)
        return tuple(by_default) if asked is None else tuple(sorted(set(asked)))

    def _stage_cuts(self, num_stages: int) -> list[Prefix]:
        """Numbers of chunks per stage with a schedule, lengths of both ends, and a layout."""
        return [
            (interleave, *lengths, layout, schedule)
            for (interleave,) in self._free("interleave", self._interleaves(num_stages))
            for schedule in self._schedules(num_stages, interleave)
            for lengths, layout in self._layers(num_stages, interleave, schedule)
        ]

    def _schedules(self, num_stages: int, interleave: int) -> list[str]:
        """Schedules of a number of chunks, first the base's or the default; one on one stage."""
        if "schedule" in self.held:
            return [self.base.schedule]
        first = default_name(interleave)
        if self.base.schedule_family.allows_chunks(interleave):
            first = self.base.schedule
        # Megatron-LM's; other orders need PyTorch's runtime, and are searched if asked for. Those
        # that run slices need as many as the base has.
        cuts = self.base.parallelism.sequence_slices > 1
        usual = (
            name
            for name, family in NAMED.items()
            if family.blocks and (cuts or not family.cuts_sequences)
        )
        names = self._vary.get("schedule", [first, *usual])
        allowed = [
            name
            for name in dict.fromkeys(names)
            if name not in NAMED or NAMED[name].allows_chunks(interleave)
        ]
        return allowed if num_stages > 1 else allowed[:1]

    def _layers(
        self, num_stages: int, interleave: int, schedule: str
    ) -> list[tuple[StageLengths, str | None]]:
        """Lengths of the first and last stage to try, and a layout if no lengths are possible.

        Lengths set outside of the file keep both.
        """
        split, layers = self.base.parallelism, self.base.model.num_layers
        written = StageLengths(split.first_stage_layers, split.last_stage_layers)
        if "layout" in self._vary:
            return [(EVEN, layout) for layout in self._vary["layout"]]
        if self.held.intersection(StageLengths._fields):
            return [(written, None)]
        if self._vary.keys() & {*StageLengths._fields}:
            ends = [
                self._vary.get(name, [now])
                for name, now in zip(StageLengths._fields, written, strict=True)
            ]
            return [(StageLengths(*pair), None) for pair in itertools.product(*ends)]
        if num_stages == 1 or self._has_layout(num_stages * interleave):
            return [(EVEN, None)]
        family = self.base.schedule_family if schedule == self.base.schedule else NAMED[schedule]
        placement = family.placement(num_stages, interleave)
        lengths = lengths_to_try(layers, placement, self._model_end)
        if not lengths and "layout" not in self.held:
            layout = balanced_layout(
                layers, placement, self._model_end, self.base.model.mtp_num_layers
            )
            if layout is not None:
                return [(EVEN, layout)]
        if num_stages == split.pipeline:
            explicit = explicit_lengths(written, layers, num_stages)
            lengths += [explicit] if explicit and explicit not in lengths else []
        return [(pair, None) for pair in lengths]

    def _has_layout(self, num_chunks: int) -> bool:
        """Whether the base's layout places the layers of points with this number of chunks."""
        chunks = len(self.base.parallelism.layout_chunks)
        is_kept = bool(chunks) and "parallelism.layout" not in self.conditional
        return is_kept or chunks == num_chunks

    @functools.cached_property
    def _model_end(self) -> float:
        return layers_of_model_end(self.base)

    def _interleaves(self, num_stages: int) -> list[int]:
        """Numbers of chunks by default: divisors of the layers; a few if stages are not even."""
        layers = self.base.model.num_layers
        numbers = {*divisors(layers), self._now.interleave}
        if num_stages > 1 and layers % num_stages:
            numbers |= {number for number in _UNEVEN_CHUNKS if num_stages * number <= layers}
        return sorted(numbers)

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
            case "first_stage_layers" | "last_stage_layers" | "layout":
                place = COORDINATES.index(name) - len(_SPLIT)
                now = None if name == "layout" else getattr(self._now, name)
                stages = {split[_SPLIT.index("pipeline")] for split in self._all_splits}
                return any(
                    cut[place] != now for num_stages in stages for cut in self._cuts(num_stages)
                )
            case "expert_tensor":
                return self.base.model.experts is not None
            case _:
                return True

    def _free(self, name: str, values: Iterable[Any]) -> list[Prefix]:
        values = [getattr(self._now, name)] if name in self.held else self._vary.get(name, values)
        return [(value,) for value in values]

    def _new_section(self, name: str, *values: Any) -> Section:
        section: Section = getattr(self.base, name)
        return section.model_copy(update=dict(zip(self.values[name], values, strict=True)))

    def _scatter_gather(self, point: Point) -> bool:
        """On, unless the file turns it off or sequence parallelism already splits the output."""
        split = self.base.parallelism
        is_off = "scatter_gather" in split.model_fields_set and not split.scatter_gather
        matrices = split.matrix_split
        grid = matrices and matrices.sizes(point.tensor, split.tensor_depth)
        is_divided = grid is not None
        return not (point.sequence_parallel or is_divided or is_off)


def is_within(field: str, fields: Iterable[str]) -> bool:
    """Whether a field is one of some fields, or in one of them that is a section."""
    return any(field == other or field.startswith(f"{other}.") for other in fields)


def _is_overridden(scenario: Scenario, field: str) -> bool:
    """Whether a field, or a field within it, was set outside the scenario's file."""
    path, written = tuple(field.split(".")), scenario.positions.places.items()
    return any(at.value.line is None for where, at in written if where[: len(path)] == path)
