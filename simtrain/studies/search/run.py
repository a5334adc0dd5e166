"""Run a search: from a request to its result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from simtrain.base.output_folder import make_folder, replacing, writing_to
from simtrain.base.plain_data import PlainData, keys
from simtrain.base.process import without_garbage_collection
from simtrain.base.request import takes
from simtrain.base.resources import provenance
from simtrain.base.strict_yaml import yaml_text
from simtrain.base.values import dataclass, field, replace
from simtrain.errors import DoesNotFitError, InputError, Location
from simtrain.hardware.evidence import Evidence
from simtrain.hardware.interval import Interval, peak_errors
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import FitVerdict, surely_fitting_bytes
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.headline import iteration_line
from simtrain.iteration.report.result import Result, evidence_for, run_kind
from simtrain.scenario import REASONS, RULES, RecomputePolicy, Rule, Scenario, check_scenario
from simtrain.studies.answer import Answer
from simtrain.studies.changes import Change, all_values, changes_of, policies_near, setting_in_words
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.on_machine import refuse_program, rules_on
from simtrain.studies.search.exact_search import (
    Explorer,
    ProgressCallback,
    SearchOutcome,
    Stop,
    key_of,
    search_all,
    stop_after,
)
from simtrain.studies.search.legality import LegalPoints, legal_points, rules_of_base
from simtrain.studies.search.request import SearchRequest
from simtrain.studies.search.space import FIELDS, Point, Space, in_short, is_within
from simtrain.studies.simulation import checked_profile
from simtrain.units import counted, format_bytes, format_seconds

_WHAT = "scenarios"


def write_scenarios(result: SearchResult, folder: Path) -> list[Path]:
    """Write one scenario per ranked layout, named by the base and the rank, and the refined one.

    Raises:
        InputError: the folder cannot be written to, or has one of the files (E113).
    """
    *paths, refined = files_of_ranks(folder, result.base, len(result.ranked))
    files = [
        (path, layout, f"number {rank}")
        for rank, (path, layout) in enumerate(zip(paths, result.ranked, strict=True), start=1)
    ]
    if result.refinement and result.refinement.changes:
        origin = f"refined from number {result.refinement.rank}"
        files.append((refined, result.refinement.layout, origin))
    with writing_to(folder, _WHAT):
        for path, layout, origin in files:
            description = (
                f"{origin} by time on {counted(layout.scenario.num_gpus, 'GPU')}: "
                f"{format_seconds(layout.iteration_time_s)}, "
                f"{format_bytes(layout.peak_bytes)} at its peak"
            )
            made = provenance(layout.scenario.cluster)
            head = (
                f"# Found by simtrain search, version {made['simtrain']}, "
                f"profile {made['profile']} (SHA-256 {made['profile_sha256']}).\n"
            )
            with replacing(path) as unfinished:
                text = head + yaml_text(data_of_file(layout.scenario, path.stem, description))
                unfinished.write_text(text, "utf-8")
    return [path for path, *_ in files]


def files_of_ranks(folder: Path, base: Scenario, top: int) -> list[Path]:
    """Create a folder, and return the files of a ranking and of the refined layout in it.

    Raises:
        InputError: as `write_scenarios`.
    """
    make_folder(folder, _WHAT)
    name = re.sub(r"[^\w.-]+", "_", base.name or "scenario")
    ranks = [*(f"{rank:02d}" for rank in range(1, top + 1)), "refined"]
    paths = [folder / f"{name}_{rank}.yaml" for rank in ranks]
    for path in filter(Path.exists, paths):
        fix = "choose another folder for -o, or remove the file"
        raise InputError.of("E113", "the file exists", Location(str(path)), fix)
    return paths


def data_of_file(scenario: Scenario, name: str, description: str) -> dict[str, Any]:
    """Return what a scenario file has: the fields that are set, and the path of the profile."""
    named = {"name": name, "description": description}
    data = scenario.model_dump(by_alias=True, exclude_unset=True, exclude=set(named))
    if Path(scenario.cluster).is_file():
        data["cluster"] = str(Path(scenario.cluster).absolute())
    if list(data.get("recompute", ())) == ["strategy"]:
        data["recompute"] = scenario.recompute.strategy
    return named | data


@dataclass(frozen=True, slots=True)
class Candidate(PlainData):
    """A layout that fits, its evaluation, and where it is in a space."""

    json_fields: ClassVar = keys(
        """configuration recompute num_gpus=scenario.num_gpus
        iteration_time_s=run.iteration_time_s gpu_seconds=evaluation.gpu_seconds
        tokens_per_s=run.tokens_per_s mfu=run.mfu hfu=run.hfu peak_bytes=evaluation.peak_bytes
        capacity_bytes=evaluation.capacity_bytes breakdown_s=run.breakdown fit=evaluation.fit
        interval_s=anchored"""
    )
    json_omits_none: ClassVar = frozenset({"interval_s"})

    scenario: Scenario
    evaluation: Evaluation
    point: Point

    def __repr__(self) -> str:
        split = self.scenario.parallelism
        degrees = f"tp {split.tensor}, dp {split.data}, pp {split.pipeline}"
        figures = f"{format_seconds(self.iteration_time_s)}, {format_bytes(self.peak_bytes)}"
        return f"<{type(self).__name__} {degrees}: {figures}>"

    @property
    def configuration(self) -> dict[str, Any]:
        return Point.of(self.scenario)._replace(settings=self.point.settings).configuration

    @property
    def recompute(self) -> dict[str, Any]:
        """The recompute policy; the chosen one if it was `auto`."""
        chosen = self.evaluation.scenario.recompute
        return {"strategy": chosen.strategy} | chosen.model_dump(exclude_defaults=True)

    @property
    def run(self) -> Result:
        assert self.evaluation.run is not None, "a candidate fits, so it was simulated"
        return self.evaluation.run

    @property
    def fit(self) -> FitVerdict:
        return self.evaluation.fit

    @property
    def iteration_time_s(self) -> float:
        return self.run.iteration_time_s

    @property
    def anchored(self) -> Interval | None:
        """Where the measured time lies, if one's own runs anchor it."""
        return self.run.interval if self.run.anchors else None

    @property
    def peak_bytes(self) -> int:
        return self.evaluation.peak_bytes


@dataclass(frozen=True, slots=True)
class FailedLayout(PlainData):
    """A legal layout whose evaluation ended in an error."""

    json_fields: ClassVar = keys("configuration=point.configuration error")

    point: Point
    exception: Exception

    @property
    def error(self) -> str:
        return f"{type(self.exception).__name__}: {self.exception}"

    @property
    def in_short(self) -> str:
        settings = [setting_in_words(*setting) for setting in self.point.settings]
        return f"{', '.join([in_short(self.point), *settings])}: {self.error.partition(chr(10))[0]}"


@dataclass(frozen=True, slots=True)
class Refinement(PlainData):
    """The best layout that changes of single settings lead to.

    Args:
        rank: the number of the layout in the ranking that was changed.
        num_tried: legal changes, of all refined layouts.
    """

    json_fields: ClassVar = keys("**layout rank changes=changed fields num_tried num_simulated")

    layout: Candidate
    rank: int
    changes: Mapping[str, Any]
    fields: tuple[str, ...]
    num_tried: int
    num_simulated: int

    @property
    def changed(self) -> dict[str, Any]:
        return {
            field: value.model_dump(exclude_defaults=True)
            if isinstance(value, RecomputePolicy)
            else value
            for field, value in self.changes.items()
        }


@dataclass(frozen=True, slots=True, repr=False)
class SearchResult(Answer):
    """The best layouts of a space, and what is proved about them.

    Args:
        safe_bytes: the largest peak of a ranked layout, unless no layout is below it.
        ranked: the best layouts with a peak of at most `safe_bytes`, in order. If there are none,
            the best of all that fit.
        faster: the best layouts that are better than the ranked ones, but may not fit.
        left_out: settings of the base that do not apply to some legal layouts.
        varied: fields that have several values among the legal layouts.
        held: fields of a layout that have one value, and those of `hold`.
        base_layout: the layout of the base, if it is one of the searched ones and fits.
        no_base: why there is none.
    """

    json_fields: ClassVar = keys(
        """scenario=base.name cluster=base.cluster calibrated=evidence.judged evidence
        limit_bytes safe_bytes
        num_configurations=legal.num_configurations num_legal num_illegal_by_rule
        left_out_where_illegal=left_out varied held
        num_seen=outcome.num_seen num_fitting=outcome.num_fitting
        num_bounded=outcome.num_bounded num_simulated=outcome.num_simulated exact
        stopped=outcome.stopped lower_bound_iteration_time_s=outcome.bound gap best
        interval_s=interval ranked cannot_be_told_from_best=alike faster
        fastest_exact base_layout refined=refinement failures"""
    )
    json_made_on: ClassVar = "base.cluster"

    base: Scenario
    limit_bytes: int
    safe_bytes: int
    legal: LegalPoints
    outcome: SearchOutcome
    ranked: tuple[Candidate, ...]
    faster: tuple[Candidate, ...]
    profile: HardwareProfile
    left_out: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    refinement: Refinement | None = None
    base_layout: Candidate | None = None
    no_base: str = ""
    failures: tuple[FailedLayout, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether it is proved that no other legal layout is better than a ranked one."""
        return self.outcome.exact and not self._has_failures

    @property
    def fastest_exact(self) -> bool:
        """Whether it is proved that no legal layout that fits, surely or not, is better than the
        first of `faster`, or of `ranked` if there is none.
        """
        return self.outcome.faster_exact and not self._has_failures

    @property
    def _has_failures(self) -> bool:
        return any(failure.point in self.legal.points for failure in self.failures)

    @property
    def evidence(self) -> Evidence:
        return evidence_for(self.best.scenario, self.profile)

    @property
    def interval(self) -> Interval:
        return self.best.run.interval

    @property
    def num_legal(self) -> int:
        return len(self.legal.points)

    @property
    def gap(self) -> float | None:
        """Largest possible distance of the fastest from the optimum, as a share of the optimum.

        None if some legal layouts have no bound yet.
        """
        bound, fastest = self.outcome.bound, self.ranked[self.fastest_place]
        return None if bound is None else fastest.iteration_time_s / bound - 1

    @property
    def headline(self) -> str:
        """The answer in one line: the best that surely fits, and what it saves."""
        layout = self.answer
        scenario, split = layout.scenario, layout.scenario.parallelism
        line = iteration_line(scenario, layout.run, layout.run.interval, layout.fit)
        degrees = f"{split.tensor} x {split.pipeline} x {split.data}"
        return " ".join([f"{line}; {degrees}", *self.against_base(layout)])

    def against_base(self, layout: Candidate) -> list[str]:
        """Say what a layout saves of the time of the scenario's own one, or why that has none."""
        if self.base_layout is None:
            return [f"(the scenario's own layout {self.no_base})"] if self.no_base else []
        time_s, base_s = layout.iteration_time_s, self.base_layout.iteration_time_s
        if self.base_layout.point == layout.point and time_s == base_s:
            return ["is the scenario's own layout"]
        change = 1 - time_s / base_s
        words = f"saves {change:.1%} of" if change >= 0 else f"takes {-change:.1%} more than"
        ratio = Difference(self.base_layout.run, layout.run).ratio
        sure = "" if ratio.can_be_told else ", from which it cannot be told apart"
        return [f"{words} the scenario's own {format_seconds(base_s)}{sure}"]

    @property
    def num_illegal_by_rule(self) -> dict[str, int]:
        return dict(sorted(self.legal.removed.items()))

    @property
    def best(self) -> Candidate:
        return self.ranked[0]

    @property
    def fastest_place(self) -> int:
        """Place in `ranked` of the layout of which the proof is; own runs may rank others above."""
        times_s = [layout.iteration_time_s for layout in self.ranked]
        return times_s.index(min(times_s))

    @property
    def answer(self) -> Candidate:
        """The best layout, with the options that a refinement changed; as safe as the ranking."""
        refinement = self.refinement
        return refinement.layout if refinement and refinement.changes else self.best

    @property
    def is_safe(self) -> bool:
        return self.best.peak_bytes <= self.safe_bytes

    @property
    def alike(self) -> list[int]:
        """Numbers of the layouts that cannot be told apart from number 1."""
        best, *others = (layout.run for layout in self.ranked)
        ratios = (Difference(best, other).ratio for other in others)
        return [number for number, ratio in enumerate(ratios, 2) if not ratio.can_be_told]


_SHARE_OF_LAYOUTS = 0.7
"""Share of a time budget after which layouts are refined."""
_STARTS = 2
"""Layouts that are refined: the best ones."""
_MOST_ROUNDS = 3
"""Times that all settings of a layout are tried, at most."""
_REFINED_SECTIONS = ("parallelism", "placement", "memory", "overlap")
_NUMBERS = {"overlap.prefetch": (1, 2)}
"""Values to try of fields that are numbers."""
_UNREFINED = (
    # What a version of the framework does: no one chooses them for a layout.
    *("overlap.tensor_parallel", "memory.in_place_cross_entropy", "memory.deallocate_outputs"),
)


@without_garbage_collection()
def search_layouts(request: SearchRequest) -> SearchResult:
    """Find the `top` best layouts for a scenario's model and global batch.

    A layout or a refinement whose evaluation fails is left out, and named in the result. Times are
    without the section `variation`. Fields that were changed after the base was loaded or built
    (`load_unchecked` with overrides, `Scenario.replace`) keep their values.

    Raises:
        InputError: the base has a wrong value or is illegal for every split, the cluster has too
            few GPUs, no layout is legal, or an argument is invalid.
        DoesNotFitError: no layout fits.
    """
    request.check()
    stop = stop_after(request.seconds, request.interrupted)
    share = _SHARE_OF_LAYOUTS if request.refines else 1.0
    stop_layouts = stop_after(request.seconds and share * request.seconds, request.interrupted)
    refuse_program(request.base)
    evaluator = request.evaluator or Evaluator(anchors=request.anchors)
    profile = evaluator.profile_of(request.base)
    request.check_gpus(profile)
    limit_bytes = profile.gpu.memory_capacity.value
    errors = peak_errors(run_kind(request.base, profile), evaluator.anchors)
    safe_bytes = surely_fitting_bytes(limit_bytes, errors)
    space = request.space()
    check_scenario(request.base, rules_of_base(space, rules_on(profile)[1:]))
    legal, base_point = _legal_points(space, profile)
    explorer = Explorer(space, evaluator, limit_bytes, safe_bytes)
    outcome = search_all(
        explorer,
        legal.points,
        request.top,
        request.on_progress,
        stop_layouts,
        first=base_point,
        only_best=request.only_best,
    )
    if not outcome.best:
        raise _none_fits(explorer, outcome)

    def ranked(point: Point) -> Candidate:
        return Candidate(space.scenario(point), explorer.evaluation(point), point)

    best, base_layout = tuple(map(ranked, outcome.best)), None
    if request.anchors:
        best = tuple(sorted(best, key=lambda layout: layout.run.interval.expected_s))
    no_base = "does not fit" if base_point else f"is not legal on {counted(space.gpus, 'GPU')}"
    if request.base.recompute.is_open:
        no_base = "chooses its recompute"
    if base_point and not request.only_best and explorer.peak_bytes(base_point) <= limit_bytes:
        base_layout = ranked(base_point) if explorer.key(base_point) else None
    refinement = None
    if request.refines:
        rules = *RULES, *rules_on(profile)[1:]
        climber = _Climber(explorer, request.on_progress, stop, best, rules)
        refinement = climber.refine(_refined_fields(space))
    return SearchResult(
        request.base,
        limit_bytes,
        safe_bytes,
        legal,
        outcome,
        best,
        tuple(map(ranked, outcome.faster)),
        profile,
        space.left_out(legal.points),
        space.varied(legal.points),
        space.held_fields(legal.points, refinement.fields if refinement else ()),
        refinement,
        base_layout,
        no_base,
        tuple(FailedLayout(*failure) for failure in explorer.failures.items()),
    )


search = takes(SearchRequest)(search_layouts)


def _legal_points(space: Space, profile: HardwareProfile) -> tuple[LegalPoints, Point | None]:
    """Return the legal layouts, and which of them is the base's own; refuse a base without any.

    The own layout is one of them even if the space lists none like it, such as other lengths of
    stages.
    """
    of_cluster = rules_on(profile)[1:]  # all points have one size
    legal = legal_points(space, of_cluster)
    if not legal.points:
        raise _none_legal(space, legal)
    # The cluster's other rules, which every point or none breaks.
    checked_profile(space.scenario(legal.points[0]), profile)
    base_point = space.own_point()
    if base_point is None or base_point in legal.points:
        return legal, base_point
    for point in legal.points if space.options else ():
        if point._replace(off=()) == base_point:
            return legal, point
    with suppress(InputError):
        checked_profile(space.scenario(base_point), profile)
        return replace(legal, points=(*legal.points, base_point)), base_point
    return legal, None


# ------------------------------------------------------------------------- refinement


def _refined_fields(space: Space) -> dict[str, Iterable[Any]]:
    """Return the settings that a refinement changes, with their values: flags and choices.

    Those that nobody set or holds. None stands for the policies near that of a layout.
    """
    base, fields = space.base, dict[str, Iterable[Any]]()
    fixed = [*FIELDS.values(), *_UNREFINED, *space.hold, *base.changed_values]
    for section in _REFINED_SECTIONS:
        for name in type(getattr(base, section)).model_fields:
            field = f"{section}.{name}"
            values = _NUMBERS.get(field) or all_values(field)
            if values and not is_within(field, fixed):
                fields[field] = values
    return fields if "recompute" in space.held else fields | {"recompute": ()}


@dataclass
class _Climber:
    """Improves the best layouts of a search one setting at a time, as long as one is better.

    A search takes what the scenario and the framework set, or off, for options of overlap and
    memory, and three kinds of recompute; here the other values are tried. Several changes that are
    better only together are not found. A refined layout is as safe as the ranking is.
    """

    explorer: Explorer
    on_progress: ProgressCallback
    stop: Stop
    best: Sequence[Candidate]
    rules: Sequence[Rule]
    tried_fields: dict[str, None] = field(default_factory=dict)
    tried: dict[Point, tuple[Scenario, Evaluation] | None] = field(default_factory=dict)
    most_bytes: int = 0

    def refine(self, fields: dict[str, Iterable[Any]]) -> Refinement:
        """Return the best layout that changes of these fields lead to."""
        is_safe = self.best[0].peak_bytes <= self.explorer.safe_bytes
        self.most_bytes = self.explorer.safe_bytes if is_safe else self.explorer.limit_bytes
        ends = [self.climb(start, fields) for start in self.best[:_STARTS]]
        keys = [key_of(end.evaluation) for end, _ in ends]
        place = keys.index(min(keys))
        layout, changes = ends[place]
        evaluations = [each[1] for each in self.tried.values() if each is not None]
        simulated = sum(each.run is not None for each in evaluations)
        return Refinement(
            layout, place + 1, changes, tuple(self.tried_fields), len(evaluations), simulated
        )

    def climb(
        self, start: Candidate, fields: dict[str, Iterable[Any]]
    ) -> tuple[Candidate, dict[str, Any]]:
        """Return the end of a climb from a layout, and the changed fields."""
        best, changes = start, dict[str, Any]()
        for _ in range(_MOST_ROUNDS):
            before = best
            for number, name in enumerate(fields):
                layout = in_short(Point.of(best.scenario))
                self.on_progress("refining", number, len(fields), layout)
                values = fields[name] or policies_near(best.scenario)
                for change in changes_of(best.scenario, {name: values}):
                    if self.stop():
                        return best, changes
                    changed = self.changed(best, change)
                    if changed and key_of(changed.evaluation) < key_of(best.evaluation):
                        best, changes = changed, changes | dict(change.values)
            if best is before:
                break
        return best, changes

    def changed(self, layout: Candidate, change: Change) -> Candidate | None:
        """Return a layout with a change; None if it is illegal, or too large to be as safe."""
        point = layout.point
        if "recompute" in change.values:
            point = point._replace(recompute=change.values["recompute"])
        else:
            settings = sorted(({**dict(point.settings), **change.values}).items())
            point = point._replace(settings=tuple(settings))
        if point not in self.tried:
            self.tried[point] = self.explorer.attempt(
                point, lambda point: self.evaluated(layout.scenario, change), None
            )
        changed = self.tried[point]
        if changed is None:
            return None
        self.tried_fields |= dict.fromkeys(change.values)
        scenario, evaluation = changed
        if evaluation.run is None or evaluation.peak_bytes > self.most_bytes:
            return None
        return Candidate(scenario, evaluation, point)

    def evaluated(self, scenario: Scenario, change: Change) -> tuple[Scenario, Evaluation] | None:
        try:
            changed = change.applied_to(scenario)
            # An error of `evaluate` would first look for remedies, which nobody reads here.
            if any(rule.check(changed) for rule in self.rules):
                return None
            return changed, self.explorer.evaluator.evaluate(changed)
        except InputError:
            return None


# ------------------------------------------------------------------------- no layout


def _none_legal(space: Space, legal: LegalPoints) -> InputError:
    """Build the error for a space without legal layouts: how many each rule removed (E831)."""
    reason = "no tensor x pipeline x data x context uses this number of GPUs"
    if legal.removed:
        counts = legal.removed.most_common()
        lines = (f"\n    {code}, {number}: {REASONS[code]}" for code, number in counts)
        reason = "rules removed" + "".join(lines)
    fix = "search on another number of GPUs, or with another global batch"
    if space.held:
        fix += f", or without {_options(Point.of(space.base), sorted(space.held))}"
    message = f"none of {legal.num_configurations} layouts on {counted(space.gpus, 'GPU')} is legal"
    return InputError.of("E831", message, reason=reason, fix=fix)


def _options(point: Point, names: Iterable[str]) -> str:
    return Change({FIELDS[name]: getattr(point, name) for name in names}).options


def _none_fits(explorer: Explorer, outcome: SearchOutcome) -> DoesNotFitError:
    """Build the error for a space in which nothing fits (E830), or raise that of the nearest."""
    assert outcome.nearest is not None, "if nothing fits, one point has the smallest peak"
    if failure := explorer.failures.get(outcome.nearest):
        raise failure
    peak_bytes, limit_bytes = explorer.peak_bytes(outcome.nearest), explorer.limit_bytes
    needs = f"{_options(outcome.nearest, explorer.space.axes)} needs {format_bytes(peak_bytes)}"
    return DoesNotFitError.of(
        "E830",
        f"none of {outcome.num_seen} legal layouts fits",
        reason=f"the smallest excess is {format_bytes(peak_bytes - limit_bytes)}: {needs} of "
        f"{format_bytes(limit_bytes)}",
        fix="search on more GPUs, with --set memory.offload_optimizer=true, or on GPUs with more "
        "memory",
    )
