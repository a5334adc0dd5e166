"""The goodput of a training: what was drawn, the closed form beside it, and what it hangs on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.studies.goodput.fleet import Fleet
from simtrain.studies.goodput.training import HOURS, WORK, Training
from simtrain.units import DAY_S, HOUR_S


@dataclass(frozen=True, slots=True)
class Spread(PlainData):
    """A figure of many trainings: its mean, and the values that 5 % and 95 % are below.

    Args:
        mean: over all trainings.
        p5, p95: percentiles.
        mean_error: standard error of the mean.
    """

    json_fields: ClassVar = keys("mean p5 p95 mean_error")

    mean: float
    p5: float
    p95: float
    mean_error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values."""
        numbers = np.asarray(values, dtype=float)
        p5, p95 = np.percentile(numbers, (5, 95))
        error = numbers.std(ddof=1) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
        return cls(float(numbers.mean()), float(p5), float(p95), float(error))


@dataclass(frozen=True, slots=True)
class Lever(PlainData):
    """A change of the machines or of how they recover, and the ratio with it.

    Args:
        change: in words.
        effective_ratio: mean of the same trainings with the change.
        gain: what it adds to the ratio.
    """

    json_fields: ClassVar = keys("change effective_training_time_ratio=effective_ratio gain")

    change: str
    effective_ratio: float
    gain: float


@dataclass(frozen=True, slots=True)
class Hinge(PlainData):
    """An entry of the profile that the ratio hangs on.

    Args:
        entry: its name.
        value: as the profile has it.
        source: of the value.
        change: what twice the value changes of the ratio, by the closed form.
    """

    json_fields: ClassVar = keys("entry value source change_if_doubled=change")

    entry: str
    value: float
    source: str
    change: float


@dataclass(frozen=True, slots=True)
class Goodput(PlainData):
    """The goodput of a training that was drawn many times.

    Args:
        scenario: its name.
        cluster: hardware profile of the iteration.
        reliability: hardware profile of the failures.
        num_gpus: GPUs that the training uses.
        iteration_time_s: time of one iteration without failures: the mean if the scenario sets a
            field of `variation`.
        tokens_per_s: of the training while iterations run.
        num_tokens: training tokens; None if the training ends after some days.
        fleet: nodes, failures, recovery and checkpoints.
        seed: of the random numbers.
        trainings: what was drawn.
        closed_form: the ratio to first order in the rates.
        best_interval_s: the interval between checkpoints by Young's formula.
        hinges: the entries that the ratio hangs on most, the strongest first.
        levers: what would raise the ratio, the best first.
    """

    json_fields: ClassVar = keys(
        """scenario cluster reliability num_gpus num_nodes=fleet.num_nodes spares=fleet.spares
        iteration_time_s num_tokens draws seed
        effective_training_time_ratio=effective_ratio interruptions days planned_stops
        lost_hours checkpoint_interval_s=fleet.checkpoint.interval_s
        checkpoint_write_s checkpoint_blocking_s=fleet.checkpoint.blocking_s
        restart_s=fleet.restart_s closed_form_ratio=closed_form
        young_interval_s tokens interruptions_by_cause hinges levers"""
    )

    scenario: str | None
    cluster: str
    reliability: str
    num_gpus: int
    iteration_time_s: float
    tokens_per_s: float
    num_tokens: int | None
    fleet: Fleet
    seed: int
    trainings: tuple[Training, ...]
    closed_form: float
    best_interval_s: float
    hinges: tuple[Hinge, ...]
    levers: tuple[Lever, ...]

    @property
    def draws(self) -> int:
        """Number of trainings."""
        return len(self.trainings)

    @property
    def young_interval_s(self) -> float | None:
        """The interval between checkpoints by Young's formula; None without failures."""
        return self.best_interval_s if math.isfinite(self.best_interval_s) else None

    @property
    def checkpoint_write_s(self) -> float:
        """Time from the start of a checkpoint until it can be loaded."""
        return self.fleet.checkpoint.blocking_s + self.fleet.checkpoint.write_s

    @property
    def effective_ratio(self) -> Spread:
        """Share of the time that iterations take whose result is kept."""
        return self._spread(lambda training: training.effective_ratio)

    @property
    def interruptions(self) -> Spread:
        """Unplanned interruptions."""
        return self._spread(lambda training: training.num_interruptions)

    @property
    def planned_stops(self) -> Spread:
        """Planned interruptions, and replacements of slow nodes."""
        return self._spread(lambda training: training.planned)

    @property
    def days(self) -> Spread:
        """Days from the first start to the end."""
        return self._spread(lambda training: training.time_s / DAY_S)

    @property
    def tokens(self) -> Spread:
        """Tokens that the training is done with at its end."""
        return self._spread(lambda training: training.seconds[WORK] * self.tokens_per_s)

    @property
    def lost_hours(self) -> dict[str, Spread]:
        """Hours of a training that do not go to iterations that are kept, by cause."""
        return {
            kind: self._spread(lambda training, kind=kind: training.seconds[kind] / HOUR_S)  # type: ignore[misc]
            for kind in HOURS
            if kind != WORK
        }

    @property
    def interruptions_by_cause(self) -> dict[str, float]:
        """Mean number of unplanned interruptions by cause."""
        names = dict.fromkeys(name for each in self.trainings for name in each.interruptions)
        return {
            name: sum(each.interruptions.get(name, 0) for each in self.trainings) / self.draws
            for name in sorted(names)
        }

    def _spread(self, figure: Callable[[Training], float]) -> Spread:
        return Spread.of([figure(training) for training in self.trainings])
