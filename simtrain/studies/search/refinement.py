"""Improves the best layouts of a search one setting at a time.

A search of all layouts takes what the scenario and the framework set, or off, for options of
overlap and memory, and three kinds of recompute. For the best layouts the other values are
tried: each change that is legal, fits, and is better is kept, until none is. Several changes that
are better only together are not found, so a refined layout is the best found.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.scenario import RULES, RecomputePolicy, Rule, check_scenario
from simtrain.studies.changes.change import Change, changes_of
from simtrain.studies.changes.policies import policies_near
from simtrain.studies.changes.trial import ranked, try_each
from simtrain.studies.choose import is_open
from simtrain.studies.objectives.objective import Key
from simtrain.studies.search.explorer import WORST, Candidate, Explorer, ProgressCallback
from simtrain.studies.search.layout_words import in_short
from simtrain.studies.search.search_end import Stop
from simtrain.studies.search.space import Point, Settings

_STARTS = 2
"""Layouts that are refined: the best ones."""
_MOST_ROUNDS = 3
"""Times that all settings of a layout are tried, at most."""


@dataclass(frozen=True, slots=True)
class Refinement(PlainData):
    """The best layout that changes of single settings lead to.

    Args:
        layout: the refined layout.
        rank: the number of the layout in the ranking that was changed.
        changes: the changed fields with their values; none if no change is better.
        fields: the fields of which another value is legal.
        num_tried: legal changes, of all refined layouts.
        num_simulated: changes that were simulated.
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
        """The changed fields as plain data."""
        return {
            field: value.model_dump(exclude_defaults=True)
            if isinstance(value, RecomputePolicy)
            else value
            for field, value in self.changes.items()
        }


def refine(
    explorer: Explorer,
    best: Sequence[Candidate],
    fields: Mapping[str, Sequence[Any]],
    of_cluster: Sequence[Rule],
    on_progress: ProgressCallback,
    stop: Stop,
) -> Refinement:
    """Improve the best layouts of a search by changes of single settings.

    Args:
        explorer: of the search.
        best: its ranked layouts.
        fields: what to change, besides recompute: fields with their values.
        of_cluster: rules of the cluster.
        on_progress, stop: as for the search.
    """
    climber = _Climber(explorer, fields, (*RULES, *of_cluster), on_progress, stop)
    starts = [candidate.point for candidate in best[:_STARTS] if candidate.point is not None]
    ends = [climber.climb(start) for start in starts]
    _, rank = min((explorer.key(point), place) for place, point in enumerate(ends))
    start, end = starts[rank], ends[rank]
    (candidate,) = explorer.candidates([end])
    changes: dict[str, Any] = dict(end.settings[len(start.settings) :])
    if end.recompute != start.recompute:
        changes["recompute"] = end.recompute
    return Refinement(
        candidate,
        rank + 1,
        changes,
        tuple(climber.tried_fields),
        len(climber.layouts),
        len(climber.simulated),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """A legal layout.

    Args:
        point: the layout.
        least_key: close lower bound of its key; the worst key if it does not fit.
    """

    point: Point
    least_key: Key

    @property
    def fits(self) -> bool:
        """Whether it fits within the explorer's limit."""
        return self.least_key is not WORST


@dataclass
class _Climber:
    """Changes one setting of a layout at a time, and remembers the legal layouts."""

    explorer: Explorer
    fields: Mapping[str, Sequence[Any]]
    rules: Sequence[Rule]
    on_progress: ProgressCallback
    stop: Stop
    tried_fields: dict[str, None] = dataclasses.field(default_factory=dict)
    layouts: dict[Point, _Layout] = dataclasses.field(default_factory=dict)
    simulated: set[Point] = dataclasses.field(default_factory=set)

    def climb(self, start: Point) -> Point:
        """Return the end of a climb from a simulated layout."""
        best = start
        for _ in range(_MOST_ROUNDS):
            before = best
            for number, field in enumerate((*self.fields, "recompute")):
                self.on_progress("refining", number, len(self.fields) + 1, in_short(best))
                best = self.best_with(best, field)
            if best == before:
                break
        return best

    def best_with(self, start: Point, field: str) -> Point:
        """Return the best layout with any value of a field; only what can be best is simulated."""
        explorer, best = self.explorer, start
        changes = changes_of(explorer.space.scenario(start), {field: self.values(start, field)})
        changes = itertools.takewhile(lambda change: not self.stop(), changes)
        trials = [*try_each(changes, lambda change: self.layout(start, change))]
        if any(trial.is_legal for trial in trials):
            self.tried_fields[field] = None
        for trial in ranked(trials, lambda trial: trial.evaluation.least_key):
            layout = trial.evaluation
            if self.stop() or layout.least_key >= explorer.key(best):
                break
            self.simulated.add(layout.point)
            best = min(best, layout.point, key=explorer.key)
        return best

    def values(self, point: Point, field: str) -> Iterable[Any]:
        """Return the values to try of a field."""
        if field != "recompute":
            return self.fields[field]
        is_fixed = "recompute" in self.explorer.space.held or is_open(self.explorer.space.base)
        return () if is_fixed else policies_near(self.explorer.space.scenario(point))

    def layout(self, point: Point, change: Change) -> _Layout:
        """Return a layout with a change.

        Raises:
            InputError: it is illegal.
        """
        changed = self.with_change(point, change)
        if changed not in self.layouts:
            check_scenario(self.explorer.space.scenario(changed), self.rules)
            self.layouts[changed] = _Layout(changed, self.explorer.close_key(changed) or WORST)
        return self.layouts[changed]

    def with_change(self, point: Point, change: Change) -> Point:
        """Return the layout with a change; recompute is a coordinate, other fields are settings."""
        if "recompute" in change.values:
            return point._replace(recompute=change.values["recompute"])
        fixed = len(self.explorer.space.all_settings[0])
        changed = {**dict(point.settings[fixed:]), **change.values}
        return point._replace(settings=(*point.settings[:fixed], *_ordered(changed)))


def _ordered(settings: Mapping[str, Any]) -> Settings:
    """Return settings in one order, so that equal layouts are equal points."""
    return tuple(sorted(settings.items(), key=lambda setting: setting[0]))
