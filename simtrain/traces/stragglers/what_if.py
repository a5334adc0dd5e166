"""What a traced step would take without a worker, a stage, a replica or uneven sequences.

Without something, its passes take typical durations: the mean of all passes of their kind. The cost
of all stragglers is the step relative to one in which every op takes the mean of its kind. With the
mean the slowdowns are those that ByteDance published for its traces (StragglerAnalysis); with the
median they are not, so this choice was made on the traces that it reproduces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine.compiled import Floats
from simtrain.traces.stragglers.replay import Replay
from simtrain.traces.stragglers.traced_step import TracedOp

_NARROWEST = "sequence", "worker", "uneven sequences", "stage", "replica"
"""Kinds of suspects, the narrowest first, in an order that names the causes of published traces."""
_KEYS: dict[str, Callable[[TracedOp], Hashable]] = {
    "sequence": lambda op: f"microbatch {op.microbatch} of replica {op.worker.replica}",
    "worker": lambda op: op.worker,
    "stage": lambda op: f"stage {op.worker.stage}",
    "replica": lambda op: f"replica {op.worker.replica}",
}
"""Passes of one suspect have the same key, which prints as its name."""
_NEARLY = 0.9
"""A narrower suspect that saves this share of the best one's saving is named in its place."""
_LEAST_SAVING = 0.005


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


def find_stragglers(replay: Replay) -> StragglerReport:
    """Run a step again without each suspect, and name the one that costs most."""
    recorded = replay.durations_s
    typical = _typical(replay)
    groups = {kind: _groups(replay.passes, key) for kind, key in _KEYS.items()}
    members: list[tuple[str, str, list[int], Floats]] = [
        (kind, str(key), tasks, typical)
        for kind, each in groups.items()
        if len(each) > 1
        for key, tasks in each.items()
    ]
    every_pass = [number for number, _ in replay.passes]
    members.append(("uneven sequences", "all workers", every_pass, _even(replay)))
    without = np.repeat(recorded[None], len(members), axis=0)
    alone = np.repeat(typical[None], len(members), axis=0)
    for draw, (_, _, tasks, replaced) in enumerate(members):
        without[draw, tasks] = replaced[tasks]
        alone[draw, tasks] = recorded[tasks]
    without_s, alone_s = replay.step_s(without), replay.step_s(alone)
    typical_s = float(replay.step_s(typical)[0])
    suspects = [
        Suspect(
            kind,
            name,
            float(without_s[draw]),
            1 - float(without_s[draw]) / replay.time_s,
            float(alone_s[draw]) / typical_s,
            float(recorded[tasks].sum() / typical[tasks].sum()),
        )
        for draw, (kind, name, tasks, _) in enumerate(members)
    ]
    suspects.sort(key=lambda suspect: -suspect.saving)
    best = {suspect.kind: suspect for suspect in reversed(suspects)}
    return StragglerReport(
        measured_s=replay.measured_s,
        replayed_s=replay.time_s,
        typical_s=typical_s,
        largest_pass_error=float(np.abs(replay.pass_errors).max()),
        num_workers=len(groups["worker"]),
        suspects=tuple(sorted(best.values(), key=lambda suspect: -suspect.saving)),
        culprit=_culprit(best),
    )


def _typical(replay: Replay) -> Floats:
    """Return the mean duration of each task's kind of op."""
    typical = replay.durations_s.copy()
    of_name: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(replay.names):
        of_name[name].append(number)
    for tasks in of_name.values():
        typical[tasks] = replay.durations_s[tasks].mean()
    return typical


def _even(replay: Replay) -> Floats:
    """Return durations with which all passes of a kind on a stage take the same time."""
    even = replay.durations_s.copy()
    for tasks in _groups(replay.passes, lambda op: (op.worker.stage, op.name)).values():
        even[tasks] = replay.durations_s[tasks].mean()
    return even


def _groups(
    passes: Iterable[tuple[int, TracedOp]], key: Callable[[TracedOp], Hashable]
) -> dict[Hashable, list[int]]:
    """Return the tasks of passes by a key of their ops."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, op in passes:
        groups[key(op)].append(number)
    return groups


def _culprit(best: Mapping[str, Suspect]) -> Suspect | None:
    most = max(suspect.saving for suspect in best.values())
    if most < _LEAST_SAVING:
        return None
    return next(
        best[kind] for kind in _NARROWEST if kind in best and best[kind].saving >= _NEARLY * most
    )
