"""What a traced step would take without a worker, a stage, a replica or uneven sequences.

Without something, its passes take typical durations: the mean of all passes of their kind. The cost
of all stragglers is the step relative to one in which every op takes the mean of its kind. With the
mean the slowdowns are those that ByteDance published for its traces (StragglerAnalysis); with the
median they are not, so this choice was made on the traces that it reproduces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine.compiled import Floats
from simtrain.traces.stragglers.step import TracedStep
from simtrain.units import format_seconds
from simtrain.views.kinds import FOUR_DIGITS, SECONDS, SHARE, TEXT
from simtrain.views.view import Column, Facts, Row, Table, Verdict, View, remarks

_NARROWEST = "sequence", "worker", "uneven sequences", "stage", "replica"
"""Kinds of suspects, the narrowest first, in an order that names the causes of published traces."""
_NEARLY = 0.9
"""A narrower suspect that saves this share of the best one's saving is named in its place."""
_LEAST_SAVING = 0.005
_BLOCK = 64
"""Suspects that are tried together, before others are ruled out."""


@dataclass(frozen=True, slots=True)
class Suspect(PlainData):
    """Something whose passes may slow the step down.

    Args:
        kind: sequence, worker, stage, replica, or uneven sequences of all workers.
        name: which one.
        without_s: time of the step if its passes took typical durations.
        saving: share of the step that this saves.
        alone: the step in which only its passes keep their durations, relative to the typical step.
        passes: its mean pass relative to the typical one.
    """

    json_fields: ClassVar = keys("kind name without_s saving alone relative_passes=passes")

    kind: str
    name: str
    without_s: float
    saving: float
    alone: float
    passes: float


@dataclass(frozen=True, slots=True)
class StragglerReport(PlainData):
    """The stragglers of a step.

    Args:
        measured_s: time of the step in the trace.
        replayed_s: time of the step from its durations alone.
        typical_s: time of the step if each op took the mean of its kind.
        largest_pass_error: the largest difference of a pass's start or end, in steps.
        num_workers: workers of the step.
        suspects: the best of each kind, by saving.
        culprit: the narrowest suspect that explains nearly as much as any; None without one.
    """

    json_fields: ClassVar = keys(
        """measured_s replayed_s typical_s slowdown launch_delays largest_pass_error num_workers
        culprit suspects"""
    )

    measured_s: float
    replayed_s: float
    typical_s: float
    largest_pass_error: float
    num_workers: int
    suspects: tuple[Suspect, ...]
    culprit: Suspect | None

    @property
    def slowdown(self) -> float:
        """The step relative to the typical one."""
        return self.replayed_s / self.typical_s

    @property
    def launch_delays(self) -> float:
        """The traced step relative to the replayed one: gaps between the ops of workers."""
        return self.measured_s / self.replayed_s


def find_stragglers(step: TracedStep) -> StragglerReport:
    """Run a step again without each suspect, and name the one that costs most."""
    step.replay  # noqa: B018 - refuses workers that wait for each other
    typical_s = float(step.step_s(step.typical_s, [([], step.typical_s)])[0])
    tasks_of: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, task in enumerate(step.tasks):
        for kind, name in task.suspects.items():
            tasks_of[kind][name].append(number)
    groups = {kind: each for kind, each in tasks_of.items() if len(each) > 1}
    every_pass = [number for number, task in enumerate(step.tasks) if task.suspects]
    best = {
        kind: _best(step, typical_s, step.typical_s, kind, each) for kind, each in groups.items()
    }
    of_all = {"all workers": every_pass}
    best["uneven sequences"] = _best(step, typical_s, step.even_s, "uneven sequences", of_all)
    suspects = sorted(best.values(), key=lambda suspect: -suspect.saving)
    return StragglerReport(
        measured_s=step.measured_s,
        replayed_s=step.time_s,
        typical_s=typical_s,
        largest_pass_error=step.largest_pass_error,
        num_workers=step.num_workers,
        suspects=tuple(suspects),
        culprit=_culprit(best),
    )


def _best(
    step: TracedStep,
    typical_s: float,
    replaced: Floats,
    kind: str,
    suspects: Mapping[str, Sequence[int]],
) -> Suspect:
    """Return the suspect of a kind that saves most; of equal ones, the first."""
    # The critical path of the step still takes its time with other durations of its tasks, so that
    # a suspect saves at most what they lose. No suspect is tried whose tasks lose less there than
    # another one saves.
    gains = np.where(step.is_critical, step.durations_s - replaced, 0.0)
    most = {name: float(gains[tasks].sum()) for name, tasks in suspects.items()}
    names = sorted(suspects, key=lambda name: -most[name])
    best_s, chosen = np.inf, names[0]
    for first in range(0, len(names), _BLOCK):
        block = names[first : first + _BLOCK]
        if step.time_s - most[block[0]] >= best_s:  # it may save as much, not more
            break
        times_s = step.step_s(step.durations_s, [(suspects[name], replaced) for name in block])
        place = int(times_s.argmin())
        if times_s[place] < best_s:
            best_s, chosen = float(times_s[place]), block[place]
    tasks = suspects[chosen]
    alone_s = float(step.step_s(step.typical_s, [(tasks, step.durations_s)])[0])
    return Suspect(
        kind,
        chosen,
        best_s,
        1 - best_s / step.time_s,
        alone_s / typical_s,
        float(step.durations_s[tasks].sum() / step.typical_s[tasks].sum()),
    )


def _culprit(best: Mapping[str, Suspect]) -> Suspect | None:
    most = max(suspect.saving for suspect in best.values())
    if most < _LEAST_SAVING:
        return None
    nearly = (best[kind] for kind in _NARROWEST if kind in best)
    return next(suspect for suspect in nearly if suspect.saving >= _NEARLY * most)


def straggler_view(report: StragglerReport) -> View:
    """Show the step, the suspects, and the one that costs most."""
    error = f"passes start and end within {report.largest_pass_error:.1%} of the step"
    facts = Facts(
        [
            ("step", f"{format_seconds(report.measured_s)}, {report.num_workers} workers"),
            ("replayed", f"{format_seconds(report.replayed_s)}, {error}"),
            ("slowdown by stragglers", f"{report.slowdown:.3f}"),
            ("slowdown by gaps", f"{report.launch_delays:.3f}"),
        ]
    )
    columns = [
        Column("kind", "suspect", TEXT),
        Column("name", "which", TEXT),
        Column("passes", "passes\nx typical", FOUR_DIGITS),
        Column("without_s", "step\nwithout it", SECONDS),
        Column("saving", "saves", SHARE),
        Column("alone", "slowdown\nif alone", FOUR_DIGITS),
    ]
    rows = [
        Row((each.kind, each.name, each.passes, each.without_s, each.saving, each.alone))
        for each in report.suspects
    ]
    notes = remarks(
        [
            "Typical is the mean of all passes of a kind. Without a suspect its passes are "
            "typical; for the slowdown if alone, all other ops are."
        ]
    )
    table = Table("suspects", "The worst of each kind", columns, rows)
    return View([facts, table, notes, _verdict(report)])


def _verdict(report: StragglerReport) -> Verdict:
    culprit = report.culprit
    if culprit is None:
        return Verdict(True, "no worker, stage or sequence costs half a percent of the step")
    words = f"{culprit.name}: without it"
    if culprit.kind == "uneven sequences":
        words = "uneven sequences: with equal ones"
    words += f" the step takes {format_seconds(culprit.without_s)}"
    return Verdict(True, f"{words}, {culprit.saving:.1%} less", doubt="STRAGGLER")
