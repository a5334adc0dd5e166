"""The space of a search: how work is split over ranks, and what trades time for memory.

The model and the global batch are fixed. The space only lists values that can be legal:
microbatches that divide the global batch, and numbers of chunks that divide the layers or for which
there is a pipeline layout. Settings of the base that only some layouts can have, such as overlap of
an interleaved schedule in an imported scenario, are off in the others: the rules decide where.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, methodcaller
from types import MappingProxyType
from typing import Any, NamedTuple

from simtrain.base.strict_yaml.reading import dotted, parse_value
from simtrain.errors import InputError, Location
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.parallelism import layout_of_chunks
from simtrain.scenario.schema import STACK_DEFAULTS
from simtrain.scenario.section import Section, divisors, is_change
from simtrain.schedules import NAMED, StagePlacement, default_name
from simtrain.studies.changes import POLICIES, ZERO_STAGES, value_at
from simtrain.studies.sweep.grid import field_path

LONG_SEQUENCE = 32_768
"""Sequence length from which context parallelism is searched by default."""
LEAST_TOKENS = 4096
"""Fewest tokens per context-parallel rank by default."""
_UNEVEN_CHUNKS = range(2, 5)
"""Numbers of chunks per stage that a pipeline layout divides, if stages cannot be even."""
_MAY_BE_OFF = (
    *("overlap.pipeline", "overlap.align_gradient_reduction", "overlap.gradient_buckets"),
    *("overlap.align_parameter_gather", "memory.reshard_after_forward"),
    *("overlap.userbuffers", "overlap.parameter_gather", "parallelism.context_a2a"),
    *("overlap.prefetch", "memory.reduce_every_microbatch"),
    *("memory.shard_over", "parallelism.context_communication"),
)
"""Settings of a base that layouts can lack; each after the settings that it needs."""

Prefix = tuple[Any, ...]
"""The first coordinates of a point, and then what it turns off."""
Settings = tuple[tuple[str, Any], ...]
"""Fields that are not coordinates, each with its value."""
Read = Callable[[int], Any]
"""Returns what a point has at a place: a coordinate, or what an option turns off."""


class Point(NamedTuple):
    """A layout: parallel sizes, chunks and lengths of stages, microbatch, recompute, ZeRO stage.

    `off` says what each option of the base is instead, if the layout cannot have it; `settings`
    what a refinement changed.
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
    off: tuple[Settings, ...] = ()

    @classmethod
    def of(cls, scenario: Scenario) -> Point:
        return cls(*attrgetter(*FIELDS.values())(scenario))

    @property
    def configuration(self) -> dict[str, Any]:
        """The coordinates, and what a refinement changed, by name."""
        coordinates = dict(zip(COORDINATES, self, strict=False))
        recompute = self.recompute.model_dump(exclude_unset=True)
        return coordinates | {"recompute": recompute} | dict(self.settings)


COORDINATES = Point._fields[:-2]
_SECTIONS = {"micro": "batch.", "zero_stage": "memory.", "recompute": "", "schedule": ""}
FIELDS = {name: _SECTIONS.get(name, "parallelism.") + name for name in COORDINATES}
"""The field of a scenario for each coordinate of a point."""
_SPLIT = COORDINATES[:6]
_CUT = COORDINATES[6:11]
"""Coordinates that are chosen together: first the split over ranks, then the stages."""
_ENDS = ("first_stage_layers", "last_stage_layers")
_EVEN = (None, None)


class Space:
    """Layouts around a base scenario for a number of GPUs.

    An overridden field (`--set batch.micro=1`) keeps its value.

    Args:
        vary: values of coordinates' fields, instead of the default ones. By default, context
            parallelism has 1 rank for short sequences; for long ones, or if the base has several
            ranks, all numbers that leave `LEAST_TOKENS` per rank. Expert parallelism has all
            divisors of the experts.
        hold: fields and sections that keep the base's values.
    """

    def __init__(
        self,
        base: Scenario,
        gpus: int,
        vary: Mapping[str, Sequence[Any]] = MappingProxyType({}),
        hold: Sequence[str] = (),
    ) -> None:
        self.base, self.gpus, self.hold, self._now = base, gpus, hold, Point.of(base)
        self._vary = {name: vary[field] for name, field in FIELDS.items() if field in vary}
        self.held = {
            name
            for name, field in FIELDS.items()
            if name not in self._vary and (_is_overridden(base, field) or is_within(field, hold))
        }
        self._section = functools.cache(self._new_section)
        self._cuts = functools.cache(self._stage_cuts)
        self._contexts = tuple(self._values("context", self._contexts_by_default))
        self._experts = tuple(self._values("expert", self._experts_by_default))
        self._others = [
            [(value,) for value in self._values(name, values)]
            for name, values in {
                "micro": divisors(base.batch.global_),
                "sequence_parallel": (False, True),
                "zero_stage": ZERO_STAGES,
                "recompute": POLICIES,
            }.items()
        ]

    # ------------------------------------------------------------------------- points

    def choices(self, prefix: Prefix) -> Sequence[Prefix]:
        """Return the next coordinates of the points that begin with a prefix.

        First come the splits over ranks, then the chunks and lengths of stages, then one coordinate
        at a time; then what each option is: () as in the base, or else its fields' other values.
        """
        if not prefix:
            return self.splits
        if len(prefix) == len(_SPLIT):
            return self._cuts(prefix[_SPLIT.index("pipeline")])
        if len(prefix) < len(COORDINATES):
            return self._others[len(prefix) - len(_SPLIT) - len(_CUT)]
        return [(settings,) for settings in self.options[len(prefix) - len(COORDINATES)]]

    def num_points(self, prefix: Prefix = ()) -> int:
        """Return the number of points that begin with a prefix, legal or not."""
        if len(prefix) <= len(_SPLIT):
            return sum(self.num_points(prefix + choice) for choice in self.choices(prefix))
        return math.prod(map(len, self._others[len(prefix) - len(_SPLIT) - len(_CUT) :]))

    def point(self, prefix: Prefix) -> Point:
        off = prefix[len(COORDINATES) :]
        return Point._make((*prefix[: len(COORDINATES)], (), off if any(off) else ()))

    def own_point(self) -> Point | None:
        """Return the base's own layout on the number of GPUs, if it has only asked values.

        A base whose recompute is open (`auto`) has none: a search tries the policies.
        """
        layout = self._now
        allowed = self._vary | {"context": self._contexts, "expert": self._experts}
        is_searched = all(getattr(layout, name) in allowed[name] for name in allowed)
        if not is_searched or self.base.recompute.is_open:
            return None
        if self.base.model.experts is not None:
            layout = layout._replace(expert_tensor=layout.expert_tensor or layout.tensor)
        data, rest = divmod(self.gpus, layout.tensor * layout.pipeline * layout.context)
        return layout._replace(data=data) if data and not rest else None

    def scenario(self, point: Point) -> Scenario:
        """Build the scenario at a point and derive its defaults again; legality is not checked."""
        off = point.off or ((),) * len(self.options)
        return self.built((*point[: len(COORDINATES)], *off).__getitem__)

    def built(self, read: Read) -> Scenario:
        """Build the scenario whose fields follow what `read` returns."""
        changes = {
            name: self._section(name, *[value(read) for value in follows.values()])
            if isinstance(follows, dict)
            else follows(read)
            for name, follows in self.follows.items()
        }
        return self.base.model_copy(update=changes)

    @functools.cached_property
    def follows(self) -> dict[str, Any]:
        """Fields that differ between points, and fields of sections, as functions of `Read`."""

        def in_option(place: int, field: str) -> Callable[[Read], Any]:
            now = value_at(self.base, field)
            return lambda read: dict(read(place)).get(field, now)

        fields: dict[str, Callable[[Read], Any]] = {
            "parallelism.scatter_gather": self._scatter_gather
        }
        for name in self.axes:
            fields[FIELDS[name]] = methodcaller("__call__", COORDINATES.index(name))
        for place, option in enumerate(self.options, start=len(COORDINATES)):
            for field, _ in option[-1]:
                fields[field] = in_option(place, field)
        follows: dict[str, Any] = {}
        for field, value in fields.items():
            section, _, inner = field.partition(".")
            inside = follows.setdefault(section, {}) if inner else follows
            inside[inner or section] = value
        return follows

    def _new_section(self, name: str, *values: Any) -> Section:
        section: Section = getattr(self.base, name)
        return section.model_copy(update=dict(zip(self.follows[name], values, strict=True)))

    def _scatter_gather(self, read: Read) -> bool:
        """On, unless the file turns it off or sequence parallelism already divides the output."""
        split = self.base.parallelism
        if "scatter_gather" in split.model_fields_set and not split.scatter_gather:
            return False
        return not read(COORDINATES.index("sequence_parallel"))

    # ------------------------------------------------------------------------- what differs

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """Coordinates in which some point differs from the base; the base has the others."""
        stages = {split[_SPLIT.index("pipeline")] for split in self.splits}
        cuts = [cut for number in stages for cut in self._cuts(number)]
        columns = [*_columns(self.splits, len(_SPLIT)), *_columns(cuts, len(_CUT))]
        columns += [{value for (value,) in choices} for choices in self._others]
        return tuple(
            name
            for name, values, now in zip(COORDINATES, columns, self._now, strict=False)
            if values - {now}
        )

    @functools.cached_property
    def options(self) -> list[tuple[Settings, ...]]:
        """What each setting is that some points cannot have: as in the base, or other values."""
        experts = self.base.model.experts
        options: list[tuple[Settings, ...]] = []
        for field in _MAY_BE_OFF:
            section, _, name = field.partition(".")
            # Where a point cannot have a default of the stack, it is off.
            default = type(getattr(self.base, section)).model_fields[name].default
            off = False if field in STACK_DEFAULTS else default
            if value_at(self.base, field) not in (None, off):
                options.append(((), ((field, off),)))
        if experts is not None and experts.imbalance > 1:
            # The imbalance is at most the number of expert-parallel ranks.
            most = sorted(n for n in self._experts if 1 < n < experts.imbalance)[::-1]
            limited = [experts.model_copy(update={"imbalance": float(n)}) for n in most]
            limited += [experts.model_copy(update={"imbalance": 1.0})]
            options.append(((), *((("model.experts", each),) for each in limited)))
        return options

    def left_out(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Return the settings of the base that some of these points do not have."""
        off = (settings for point in points for settings in point.off)
        return tuple(dict.fromkeys(field for settings in off for field, _ in settings))

    def varied(self, points: Sequence[Point]) -> tuple[str, ...]:
        """Return the fields that have several values among these points."""
        columns = zip(FIELDS.values(), _columns(points, len(COORDINATES)), strict=True)
        return tuple(field for field, values in columns if len(values) > 1)

    def held_fields(self, points: Sequence[Point], refined: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the coordinates with one value for all of these points, and the fields to hold.

        Lengths of stages, a layout and experts that the base does not have are left out.
        """
        is_uncut = self._now[len(_SPLIT) + 1 : len(_SPLIT) + 4] == (*_EVEN, None)
        absent = {*_ENDS, "layout"} if is_uncut else set[str]()
        if self.base.model.experts is None:
            absent |= {"expert", "expert_tensor"}
        left_out = {*self.varied(points), *refined, *(FIELDS[name] for name in absent)}
        fields = dict.fromkeys([*FIELDS.values(), *self.hold])
        return tuple(field for field in fields if field not in left_out)

    # ------------------------------------------------------------------------- splits over ranks

    @functools.cached_property
    def splits(self) -> list[Prefix]:
        """The splits over the GPUs: the values of the first coordinates."""
        allowed = [
            (place, self._vary.get(name, [getattr(self._now, name)]))
            for place, name in enumerate(_SPLIT)
            if name in self.held or name in self._vary
        ]
        return [
            split
            for split in self._all_splits()
            if all(split[place] in values for place, values in allowed)
        ]

    def _all_splits(self) -> Iterator[Prefix]:
        for context in self._contexts:
            groups, rest = divmod(self.gpus, context)
            for tensor in divisors(groups) if not rest else ():
                for pipeline in divisors(groups // tensor):
                    data = groups // tensor // pipeline
                    for expert, shared in itertools.product(self._experts, self._shared(tensor)):
                        yield tensor, pipeline, data, context, expert, shared

    def _shared(self, tensor: int) -> Iterable[int | None]:
        """Return choices of the ranks that share an expert: all of `tensor`, 1, or the base's."""
        now = self._now.expert_tensor
        if self.base.model.experts is None or "expert_tensor" in self.held:
            return (now,)
        return dict.fromkeys((tensor, 1, now or 1))

    @property
    def _contexts_by_default(self) -> list[int]:
        now, length = self._now.context, self.base.model.seq_length
        if now == 1 and length < LONG_SEQUENCE:
            return [1]
        most = max(now, length // LEAST_TOKENS)
        return [number for number in divisors(self.gpus) if number <= most]

    @property
    def _experts_by_default(self) -> list[int]:
        experts = self.base.model.experts
        return [self._now.expert] if experts is None else divisors(experts.num)

    def _values(self, name: str, values: Iterable[Any]) -> Iterable[Any]:
        return [getattr(self._now, name)] if name in self.held else self._vary.get(name, values)

    # ------------------------------------------------------------------------- stages

    def _stage_cuts(self, num_stages: int) -> list[Prefix]:
        """Return numbers of chunks with lengths of both ends, a layout, and a schedule."""
        return [
            (interleave, *lengths, layout, schedule)
            for interleave in self._values("interleave", self._interleaves(num_stages))
            for schedule in self._schedules(num_stages, interleave)
            for lengths, layout in self._layers(num_stages, interleave, schedule)
        ]

    def _interleaves(self, num_stages: int) -> list[int]:
        """Return divisors of the layers; a few more numbers if stages are not even."""
        layers = self.base.model.num_layers
        numbers = {*divisors(layers), self._now.interleave}
        if num_stages > 1 and layers % num_stages:
            numbers |= {number for number in _UNEVEN_CHUNKS if num_stages * number <= layers}
        return sorted(numbers)

    def _schedules(self, num_stages: int, interleave: int) -> list[str]:
        """Return schedules of a number of chunks, first the base's or the default; one on 1 stage.

        They are Megatron-LM's; other orders need PyTorch's runtime, and are searched if asked for.
        """
        if "schedule" in self.held:
            return [self.base.schedule]
        first = default_name(interleave)
        if self.base.schedule_family.allows_chunks(interleave):
            first = self.base.schedule
        usual = (name for name, family in NAMED.items() if family.blocks)
        allowed = [
            name
            for name in dict.fromkeys(self._vary.get("schedule", [first, *usual]))
            if name not in NAMED or NAMED[name].allows_chunks(interleave)
        ]
        return allowed if num_stages > 1 else allowed[:1]

    def _layers(
        self, num_stages: int, interleave: int, schedule: str
    ) -> list[tuple[Prefix, str | None]]:
        """Return lengths of the first and last stage, and a layout if no lengths are possible.

        Lengths set outside of the file keep both.
        """
        split, layers = self.base.parallelism, self.base.model.num_layers
        written = split.first_stage_layers, split.last_stage_layers
        if "layout" in self._vary:
            return [(_EVEN, layout) for layout in self._vary["layout"]]
        if self.held.intersection(_ENDS):
            return [(written, None)]
        if self._vary.keys() & {*_ENDS}:
            ends = (self._vary.get(name, [now]) for name, now in zip(_ENDS, written, strict=True))
            return [(pair, None) for pair in itertools.product(*ends)]
        is_own = num_stages > 1 and len(split.layout_chunks) == num_stages * interleave
        if is_own or (split.layout is not None and "layout" in self.held):
            return [(_EVEN, split.layout)]
        if layers % num_stages == 0:
            return [(_EVEN, None)]
        cuts = list[tuple[Prefix, str | None]]()
        cuts += [(pair, None) for pair in _even_lengths(layers, num_stages, interleave)]
        family = self.base.schedule_family if schedule == self.base.schedule else NAMED[schedule]
        if not cuts and "layout" not in self.held:
            layout = balanced_layout(self.base, family.placement(num_stages, interleave))
            cuts += [(_EVEN, layout)] if layout is not None else []
        if num_stages == split.pipeline and (written, None) not in cuts:
            cuts.append((written, None))
        return cuts


def _even_lengths(num_layers: int, num_stages: int, chunks: int) -> list[Prefix]:
    """Return the most even lengths of the first and last stage, if the others are even.

    Megatron-LM's --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers; the
    last stage, which has the loss, is the shorter one.
    """
    share = num_layers // num_stages // chunks * chunks
    lengths = list[Prefix]()
    for middle in (share, share + chunks) if num_layers % chunks == 0 else ():
        rest = num_layers - (num_stages - 2) * middle
        last = rest // 2 // chunks * chunks
        if last >= chunks and middle and rest - last <= num_layers / num_stages + chunks:
            lengths.append((rest - last, last))
    return [*dict.fromkeys(lengths)]  # two stages have none between them


def balanced_layout(base: Scenario, placement: StagePlacement) -> str | None:
    """Return the layout with the most even stages (--pipeline-model-parallel-layout).

    None if there are too few layers, or several copies of the model. Each chunk before the last has
    layers, and chunks of a stage are as even as possible.
    """
    model, num_others, num_chunks = base.model, placement.num_ranks - 1, placement.num_chunks
    # The output layer's products, in layers of 12 h^2 weights; a prediction is about a layer.
    model_end = model.vocab_size / (12 * model.hidden_size) + model.mtp_num_layers

    def fullest(of_last: int) -> tuple[float, int]:
        return max(-(-(model.num_layers - of_last) // num_others), of_last + model_end), -of_last

    of_last = min(range(model.num_layers // placement.num_ranks + 1), key=fullest)
    share, num_longer = divmod(model.num_layers - of_last, num_others)
    if placement.copies > 1 or share < num_chunks or of_last < num_chunks - 1:
        return None
    layers = [share + (place >= num_others - num_longer) for place in range(num_others)]
    layers.insert(placement.ranks[-1], of_last)
    chunks = [""] * placement.num_virtual_stages
    for virtual_stages, of_stage in zip(placement.virtual_stages, layers, strict=True):
        of_chunk, num_longer = divmod(of_stage, num_chunks)
        for place, virtual_stage in enumerate(virtual_stages):
            chunks[virtual_stage] = "t" * (of_chunk + (place < num_longer))
    end = chunks[-1] + "m" * model.mtp_num_layers + "L"
    return layout_of_chunks(["E" + chunks[0], *chunks[1:-1], end])


def in_short(point: Point) -> str:
    """Format a layout: "4 x 16 x 8, interleave 3, micro 2, recompute full"."""
    parts = {
        f"{point.tensor} x {point.pipeline} x {point.data}": True,
        f"context {point.context}": point.context > 1,
        f"expert {point.expert}": point.expert > 1,
        f"interleave {point.interleave}": point.interleave > 1,
        point.schedule: point.schedule != default_name(point.interleave),
        f"micro {point.micro}": True,
        "sequence parallel": point.sequence_parallel,
        f"ZeRO {point.zero_stage}": point.zero_stage > 0,
        f"recompute {point.recompute.strategy}": True,
    }
    return ", ".join(words for words, is_said in parts.items() if is_said)


def is_within(field: str, fields: Iterable[str]) -> bool:
    """Whether a field is one of some fields, or in one of them that is a section."""
    return any(field == other or field.startswith(f"{other}.") for other in fields)


def _columns(rows: Iterable[Prefix], number: int) -> list[set[Any]]:
    """Return the different values of the first columns of some rows."""
    columns = zip(*rows, strict=True)
    return [set(column) for column in itertools.islice(columns, number)]


def _is_overridden(scenario: Scenario, field: str) -> bool:
    """Whether a field, or a field within it, was set outside the scenario's file."""
    path, written = tuple(field.split(".")), scenario.positions.places.items()
    return any(at.value.line is None for where, at in written if where[: len(path)] == path)


# ------------------------------------------------------------------------- asked fields


def read_vary(options: Sequence[str]) -> dict[str, Sequence[Any] | None]:
    """Parse options such as `batch.micro=1,2` or `schedule`.

    Raises:
        InputError: a value is not YAML.
    """
    varied: dict[str, Sequence[Any] | None] = {}
    for option in options:
        name, equals, text = option.partition("=")
        place = Location(f"--vary {option}")
        varied[name.strip()] = parse_value(f"[{text}]", place) if equals else None
    return varied


def check_held(hold: Sequence[str]) -> tuple[str, ...]:
    """Return the fields and sections that a search holds; refuse unknown ones (E802)."""
    return tuple(dotted(field_path(name, Location(f"--hold {name}"))) for name in hold)


def check_varied(
    base: Scenario, vary: Mapping[str, Sequence[Any] | None]
) -> dict[str, tuple[Any, ...]]:
    """Return the validated values of fields that a search varies.

    Raises:
        InputError: a field or a value does not exist (E802); the field is none of a layout or is
            set by --set, or `recompute: auto` is among the values (E838).
    """
    varied = {}
    for name, written in vary.items():
        field = dotted(field_path(name, Location(f"--vary {name}")))
        if values := _values_of(base, field, written):
            varied[field] = values
    return varied


def _values_of(base: Scenario, name: str, written: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return the values of a field; () for those that a search tries in any case."""

    def refused(message: str, fix: str) -> InputError:
        return InputError.of("E838", message, Location(f"--vary {name}"), fix)

    path, places = tuple(name.split(".")), base.positions.places
    if path[0] == "cluster":
        line = "simtrain search --tokens 1T --cluster NAME,NAME"
        raise refused("a search has one machine", f"compare machines with {line}")
    if name not in FIELDS.values():
        raise refused(f"{name} is not of a layout", "compare its values with simtrain sweep")
    if any(is_change(at.value) for where, at in places.items() if where[: len(path)] == path):
        raise refused(f"{name} is set by --set and varied", "remove one of them")
    if written is None:
        return tuple(NAMED) if name == "schedule" else ()
    if not written:
        raise refused(f"{name} has no values", f"write them, or --vary {name} for the usual ones")
    values = tuple(dict.fromkeys(value_at(base.replace({name: value}), name) for value in written))
    for value in values:
        if isinstance(value, RecomputePolicy) and value.is_open:
            raise refused("auto is a choice among policies", "remove it: a search tries these")
    return values
