"""Predictions beside measured runs, and the statistics of their errors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.interval import Interval
from simtrain.hardware.run_kind import RunKind
from simtrain.iteration.report.breakdown import CAUSE_LABELS, Breakdown, breakdown_by_name
from simtrain.studies.evaluation import Evaluation
from simtrain.studies.validation.guess import FEWEST_RUNS, Guess
from simtrain.studies.validation.wrong_units import MeasuredFigure, wrong_units
from simtrain.units import counted

CLOSE = 0.10
"""A prediction is close if its |error| is at most this."""
MOST_MEAN_ERROR = 0.25
"""Largest mean |error| that is called OK. Published runs of a profile's machine are within 10 %."""
SETTINGS = (
    *("GPUs", "tensor", "pipeline", "interleave", "data", "context", "expert", "microbatch"),
    *("sequence", "width", "data type", "recompute"),
)
"""What tells runs apart."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a comparison keeps of an evaluation; its scenario takes ten times as much memory.

    Args:
        time_s: iteration time.
        breakdown: time by cause, the mean over the stages.
        fits: whether it fits in memory.
        tokens_per_gpu: tokens of the global batch for each GPU.
        settings: values of `SETTINGS`.
    """

    time_s: float | None
    breakdown: Breakdown | None
    fits: bool
    tokens_per_gpu: float
    num_layers: int
    settings: tuple[str | int, ...]

    @classmethod
    def of(cls, evaluation: Evaluation) -> Prediction:
        """Return what is kept of an evaluation."""
        scenario, run = evaluation.scenario, evaluation.run
        model, split, batch = scenario.model, scenario.parallelism, scenario.batch
        return cls(
            run.iteration_time_s if run else None,
            run.breakdown if run else None,
            evaluation.fits,
            batch.global_ * model.seq_length / scenario.num_gpus,
            model.num_layers,
            (
                *(scenario.num_gpus, split.tensor, split.pipeline, scenario.num_chunks),
                *(split.data, split.context, split.expert, batch.micro, model.seq_length),
                *(model.hidden_size, scenario.precision.compute, scenario.recompute.strategy),
            ),
        )


@dataclass(frozen=True, slots=True)
class ValidatedRun(PlainData):
    """A measured run beside its prediction.

    Args:
        name: its name in the source.
        model: the model's name, "" if the source has none.
        file: the source.
        line: its line.
        prediction: the prediction; None if the run could not be simulated.
        refusal: why it could not, "" if it could.
        measured_s: measured iteration time; None if it was not measured.
        measured_peak_bytes: measured peak of memory; None if it was not measured.
        simulated_peak_bytes: what is predicted for it, with or without memory outside tensors, on
            the fullest or on the last stage, as it was measured.
        kind: the kind of runs that it belongs to; None without a prediction.
        extrapolated: share of its kernel time for shapes outside the fitted range.
        interval: where the measured time is predicted to lie.
        ran: whether the run had enough memory.
        assumed: facts that the source does not have, and what stands for them.
        time_column: the name that the source gives to the time.
        peak_column: the name that the source gives to the peak.
    """

    json_fields: ClassVar = keys(
        """name model file line refusal measured_s simulated_s interval_s=interval extrapolated
        error breakdown_s could_account_for_it measured_peak_bytes simulated_peak_bytes peak_error
        ran fits settings assumed"""
    )

    name: str
    model: str
    file: str
    line: int
    prediction: Prediction | None
    refusal: str
    measured_s: float | None
    measured_peak_bytes: float | None
    simulated_peak_bytes: int | None
    kind: RunKind | None
    extrapolated: float | None
    interval: Interval | None
    ran: bool
    assumed: Sequence[str]
    time_column: str = ""
    peak_column: str = ""

    @property
    def simulated_s(self) -> float | None:
        """Predicted iteration time."""
        return self.prediction.time_s if self.prediction else None

    @property
    def error(self) -> float | None:
        """Predicted / measured time - 1; below zero if the prediction is too fast."""
        if self.simulated_s is None or self.measured_s is None:
            return None
        return self.simulated_s / self.measured_s - 1

    @property
    def breakdown(self) -> Breakdown | None:
        """Predicted time by cause, the mean over the stages."""
        return self.prediction.breakdown if self.prediction else None

    @property
    def breakdown_s(self) -> Mapping[str, float] | None:
        """Predicted time by cause, the mean over the stages."""
        if self.breakdown is None:
            return None
        return breakdown_by_name(self.breakdown)

    @property
    def peak_error(self) -> float | None:
        """Predicted / measured peak - 1."""
        if self.simulated_peak_bytes is None or self.measured_peak_bytes is None:
            return None
        return self.simulated_peak_bytes / self.measured_peak_bytes - 1

    @property
    def fits(self) -> bool | None:
        """Whether the prediction fits in memory."""
        return self.prediction.fits if self.prediction else None

    @property
    def settings(self) -> Mapping[str, str | int] | None:
        """What tells runs apart: GPUs, layout, microbatch, sequence, width, data type."""
        if self.prediction is None:
            return None
        return dict(zip(SETTINGS, self.prediction.settings, strict=True))

    @property
    def ranked_with(self) -> Hashable:
        """What runs of one model have in common: its name, or else its width, and its layers."""
        if self.prediction is None or self.settings is None:
            return None
        return self.model or self.settings["width"], self.prediction.num_layers

    @property
    def could_account_for_it(self) -> str | None:
        """The cause in the prediction that could account for its error; None without an error.

        Too slow by x seconds: the smallest cause that takes at least x, which the run may have
        hidden. Too fast: compute, and by how much slower it would have to be.
        """
        breakdown = self.breakdown
        if breakdown is None or self.simulated_s is None or self.measured_s is None:
            return None
        excess_s = self.simulated_s - self.measured_s
        others = {
            label: getattr(breakdown, name)
            for name, label in CAUSE_LABELS.items()
            if name != "compute_s" and getattr(breakdown, name) >= excess_s
        }
        if excess_s > 0 and others:
            return min(others, key=lambda label: others[label])
        change = abs(excess_s) / breakdown.compute_s
        return f"compute, if {change:.1%} {'faster' if excess_s > 0 else 'slower'}"


@dataclass(frozen=True, slots=True)
class Errors(PlainData):
    """Statistics of errors (predicted / measured - 1).

    Args:
        errors: the errors, in the order of the runs.
    """

    json_fields: ClassVar = keys(
        "num mean_abs_error median_error bias p5 p25 p75 p95 within_10_percent worst_error"
    )

    errors: Sequence[float]

    @property
    def num(self) -> int:
        """Number of errors."""
        return len(self.errors)

    @property
    def mean_abs_error(self) -> float | None:
        """Mean of |error|."""
        return float(np.mean(np.abs(self.errors))) if self.errors else None

    @property
    def median_error(self) -> float | None:
        """Median of |error|."""
        return float(np.median(np.abs(self.errors))) if self.errors else None

    @property
    def bias(self) -> float | None:
        """Mean of the errors: below zero if predictions are too low."""
        return float(np.mean(self.errors)) if self.errors else None

    @property
    def p5(self) -> float | None:
        """5 % of the errors are below."""
        return self._percentile(5)

    @property
    def p25(self) -> float | None:
        """25 % of the errors are below."""
        return self._percentile(25)

    @property
    def p75(self) -> float | None:
        """75 % of the errors are below."""
        return self._percentile(75)

    @property
    def p95(self) -> float | None:
        """95 % of the errors are below."""
        return self._percentile(95)

    @property
    def within_10_percent(self) -> float | None:
        """Share of predictions within 10 % of the measurement."""
        return float(np.mean(np.abs(self.errors) <= CLOSE)) if self.errors else None

    @property
    def worst_error(self) -> float | None:
        """The error with the largest |error|."""
        return max(self.errors, key=abs) if self.errors else None

    def _percentile(self, share: float) -> float | None:
        return float(np.percentile(self.errors, share)) if self.errors else None


@dataclass(frozen=True, slots=True)
class ErrorClass(PlainData):
    """Errors of the runs with one value of a setting, such as tensor 8.

    Args:
        setting: the setting.
        value: its value.
        errors: the errors of these runs.
    """

    json_fields: ClassVar = keys("setting value **errors")

    setting: str
    value: str | int
    errors: Errors


@dataclass(frozen=True, slots=True)
class Validation(PlainData):
    """Predictions of measured runs on one machine.

    Args:
        cluster: the hardware profile.
        rows: the runs, in the order of their sources.
        guess: a setting that would explain an error of all runs; None if they share none, or no
            setting explains it.
    """

    json_fields: ClassVar = keys(
        """cluster num_rows num_simulated num_refused wrong_units most_do_not_fit guess
        **time_errors rank_correlation interval_coverage half_interval_coverage
        memory=peak_errors num_ran num_ran_and_fit num_out_of_memory
        num_out_of_memory_and_does_not_fit by_setting rows"""
    )

    cluster: str
    rows: Sequence[ValidatedRun]
    guess: Guess | None = None

    def __repr__(self) -> str:
        runs = f"{self.num_simulated} of {counted(self.num_rows, 'run')} simulated"
        error = self.time_errors.mean_abs_error
        words = "" if error is None else f", mean |error| of times {error:.1%}"
        return f"<Validation on {self.cluster}: {runs}{words}>"

    @property
    def is_close(self) -> bool:
        """Whether predictions are near enough to be called OK; also true if nothing is compared."""
        means = (self.time_errors.mean_abs_error, self.peak_errors.mean_abs_error)
        return all(mean is None or mean <= MOST_MEAN_ERROR for mean in means)

    @property
    def wrong_units(self) -> list[str]:
        """Columns that are probably in another unit than their names say, each as a sentence."""
        times = (
            MeasuredFigure(row.time_column, "s", row.measured_s, row.simulated_s)
            for row in self.rows
            if row.measured_s and row.simulated_s
        )
        peaks = (
            MeasuredFigure(
                row.peak_column, "bytes", row.measured_peak_bytes, row.simulated_peak_bytes
            )
            for row in self.rows
            if row.measured_peak_bytes and row.simulated_peak_bytes
        )
        return [*wrong_units([*times, *peaks])]

    @property
    def num_rows(self) -> int:
        """Number of rows of all sources."""
        return len(self.rows)

    @property
    def simulated(self) -> list[ValidatedRun]:
        """The rows that were simulated."""
        return [row for row in self.rows if row.prediction]

    @property
    def num_simulated(self) -> int:
        """Number of rows that were simulated."""
        return len(self.simulated)

    @property
    def refused(self) -> list[ValidatedRun]:
        """The rows that could not be simulated."""
        return [row for row in self.rows if row.prediction is None]

    @property
    def num_refused(self) -> int:
        """Number of rows that could not be simulated; each says why."""
        return len(self.refused)

    @property
    def timed(self) -> list[ValidatedRun]:
        """The simulated rows with a measured time."""
        return [row for row in self.rows if row.error is not None]

    @property
    def time_errors(self) -> Errors:
        """Errors of the iteration times."""
        return Errors([row.error for row in self.rows if row.error is not None])

    @property
    def peak_errors(self) -> Errors:
        """Errors of the peaks of memory."""
        return Errors([row.peak_error for row in self.rows if row.peak_error is not None])

    @property
    def worst(self) -> list[ValidatedRun]:
        """The rows with a measured time, the largest |error| first."""
        return sorted(self.timed, key=lambda row: -abs(row.error or 0.0))

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's correlation within each model, the mean weighted by runs; None without pairs.

        The order is that of tokens per second and GPU, because runs of a model differ in batch.
        """
        models: dict[Hashable, list[ValidatedRun]] = {}
        for row in self.timed:
            models.setdefault(row.ranked_with, []).append(row)
        groups = [_rank_correlation(rows) for rows in models.values() if len(rows) > 2]
        known = [(correlation, num) for correlation, num in groups if correlation is not None]
        if not known:
            return None
        return sum(correlation * num for correlation, num in known) / sum(num for _, num in known)

    @property
    def interval_coverage(self) -> float | None:
        """Share of the runs with a measured time whose 90 % interval contains it."""
        return _coverage(
            row.interval.has(row.measured_s)
            for row in self.timed
            if row.interval and row.measured_s
        )

    @property
    def half_interval_coverage(self) -> float | None:
        """Share of the runs with a measured time whose 50 % interval contains it."""
        return _coverage(
            row.interval.has_in_half(row.measured_s)
            for row in self.timed
            if row.interval and row.measured_s
        )

    @property
    def num_ran(self) -> int:
        """Number of simulated rows that had enough memory."""
        return sum(row.ran for row in self.simulated)

    @property
    def num_ran_and_fit(self) -> int:
        """Number of those that are predicted to fit."""
        return sum(row.ran and bool(row.fits) for row in self.simulated)

    @property
    def most_do_not_fit(self) -> bool:
        """Whether most runs that ran are predicted not to fit: they ran with other settings."""
        return self.num_ran >= FEWEST_RUNS and 2 * self.num_ran_and_fit < self.num_ran

    @property
    def num_out_of_memory(self) -> int:
        """Number of simulated rows that ran out of memory."""
        return self.num_simulated - self.num_ran

    @property
    def num_out_of_memory_and_does_not_fit(self) -> int:
        """Number of those that are predicted not to fit."""
        return sum(not row.ran and not row.fits for row in self.simulated)

    @property
    def by_setting(self) -> list[ErrorClass]:
        """Errors by the values of each setting that has several."""
        return [*_classes(self.timed)]


def _coverage(contained: Iterable[bool]) -> float | None:
    values = [*contained]
    return sum(values) / len(values) if values else None


def _rank_correlation(rows: Sequence[ValidatedRun]) -> tuple[float | None, int]:
    """Return Spearman's correlation of measured and predicted speeds, and the number of runs."""
    measured, simulated = [], []
    for row in rows:
        assert row.prediction and row.measured_s and row.simulated_s, "only timed rows are ranked"
        tokens = row.prediction.tokens_per_gpu
        measured.append(tokens / row.measured_s)
        simulated.append(tokens / row.simulated_s)
    ranks = np.array([_ranks(measured), _ranks(simulated)])
    if (ranks.std(axis=1) == 0).any():
        return None, len(rows)
    return float(np.corrcoef(ranks)[0, 1]), len(rows)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 0; equal values have the mean of their ranks."""
    ordered = np.sort(values)
    lower, upper = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return list((lower + upper - 1) / 2)


def _classes(rows: Sequence[ValidatedRun]) -> Iterable[ErrorClass]:
    """Yield the errors by the values of each setting, in order."""
    names = rows[0].settings or {} if rows else {}
    for name in names:
        values: dict[str | int, list[float]] = {}
        for row in rows:
            assert row.settings and row.error is not None, "only timed rows have classes"
            values.setdefault(row.settings[name], []).append(row.error)
        if len(values) > 1:
            for value in sorted(values, key=lambda value: (isinstance(value, str), value)):
                yield ErrorClass(name, value, Errors(values[value]))
