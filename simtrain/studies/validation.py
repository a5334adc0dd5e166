"""Measured runs beside their predictions: the statistics of their errors, and errors by kind."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.process import forget_cached
from simtrain.base.strict_yaml import yaml_text
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError
from simtrain.hardware.evidence import DataType, MeasuredRuns, Nodes, RunKind, ValidatedOn
from simtrain.hardware.interval import Interval
from simtrain.hardware.likeness import RunShape
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.result import run_kind
from simtrain.scenario import Scenario
from simtrain.scenario.resolved import settings_of
from simtrain.studies.answer import Answer
from simtrain.studies.changes import value_at
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.on_machine import memory_on
from simtrain.studies.simulation import simulate
from simtrain.units import counted

LEAST_S, MOST_S = 1e-6, 1e7
"""Shortest and longest time that an iteration can have: less than a kernel's, and four months."""
LEAST_BYTES, MOST_BYTES = 1e6, 1e14
"""Smallest and largest peak: less than a CUDA context's, and the memory of no GPU."""


class PeakOf(Enum):
    """What a measured peak of memory is the peak of."""

    GPU = "gpu"
    """All memory in use on the fullest GPU, with driver, CUDA context and fragmentation."""
    TENSORS = "tensors"
    """Allocated tensors on the fullest GPU (torch.cuda.max_memory_allocated)."""
    LAST_STAGE = "last_stage"
    """Allocated tensors on the last stage: Megatron-LM's last rank writes its logs."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the command line says about all runs.

    Args:
        software: the software stack of runs whose table does not name one.
        usual_software: the stack that is assumed if nothing names one; by default that of
            scenarios.
        scenario: what ran, for logs that do not say it.
    """

    cluster: str
    software: str | None = None
    overrides: tuple[str, ...] = ()
    usual_software: str | None = None
    scenario: Scenario | None = None

    @property
    def assignments(self) -> list[str]:
        stack = [f"software.stack={self.software}"] if self.software else []
        return [f"cluster={self.cluster}", *stack, *self.overrides]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """An iteration that someone ran, or tried to.

    Args:
        refusal: why it cannot be simulated, "" if it can.
        assumed: facts that the source does not have, and what stands for them.
    """

    name: str
    model: str
    file: str
    line: int
    scenario: Scenario | None = None
    iteration_time_s: float | None = None
    peak_bytes: float | None = None
    peak_of: PeakOf = PeakOf.GPU
    ran: bool = True
    refusal: str = ""
    assumed: Sequence[str] = ()


class Runs:
    """The runs of several sources; those of long tables are made when they are reached."""

    def __init__(self, sources: Iterable[Sequence[MeasuredRun] | Runs]) -> None:
        self._sources = [*sources]

    def __len__(self) -> int:
        return sum(map(len, self._sources))

    def __iter__(self) -> Iterator[MeasuredRun]:
        return itertools.chain.from_iterable(self._sources)


def wrong_time(time_s: float) -> str:
    """Say why a time is none of an iteration, or return ""."""
    if LEAST_S <= time_s <= MOST_S:
        return ""
    return f"{time_s:.4g} s is no time of an iteration, which takes 1 us to {MOST_S:.0e} s"


def wrong_peak(peak_bytes: float) -> str:
    """Say why a peak is none of a GPU's memory, or return ""."""
    if LEAST_BYTES <= peak_bytes <= MOST_BYTES:
        return ""
    return f"{peak_bytes:.4g} bytes are no peak of a GPU, which has 1 MB to 100 TB"


def in_one_line(error: InputError) -> str:
    """Return the first problem of an error as one line: code, message, and what follows.

    The remedy of an illegal combination would make another run of it: the reason follows instead.
    """
    problem, *others = error.problems
    more = f" (and {len(others)} more)" if others else ""
    is_illegal = problem.code.startswith(("E3", "E4"))
    what = problem.reason if is_illegal and problem.reason else problem.fix
    return " ".join(f"{problem.code} {problem.message}{f'; {what}' if what else ''}{more}".split())


CLOSE = 0.10
"""A prediction is close if its |error| is at most this."""
MOST_MEAN_ERROR = 0.25
"""Largest mean |error| that is called OK. Published runs of a profile's machine are within 10 %."""
_FEWEST_THAT_RAN = 5
"""Of fewer runs that ran, nothing follows from most not fitting."""
_FEWEST_RUNS = 20
_Class = tuple[str, DataType, bool, bool]
"""Software stack, data type, and whether the models have experts and are hybrid."""
_LOWEST = -0.9999
"""A prediction is above 0: its error above -1, also when it is rounded."""


@dataclass(frozen=True, slots=True)
class ValidatedRun(MeasuredRun, PlainData):
    """A measured run beside its prediction, without its scenario.

    Args:
        extrapolated: share of its kernel time for shapes outside the fitted range.
        simulated_peak_bytes: peak of memory, on the stage and with or without memory outside
            tensors as it was measured.
        settings: what tells runs apart: GPUs, layout, microbatch, sequence, width, data type.
        kind, shape: the kind of runs that it belongs to, and what tells which runs of it are like
            it; None without a predicted time.
    """

    json_fields: ClassVar = keys(
        """name model file line refusal measured_s=iteration_time_s simulated_s interval_s=interval
        extrapolated error breakdown_s measured_peak_bytes=peak_bytes simulated_peak_bytes
        peak_error ran fits settings assumed"""
    )

    simulated_s: float | None = None
    interval: Interval | None = None
    extrapolated: float | None = None
    breakdown_s: Mapping[str, float] | None = None
    simulated_peak_bytes: int | None = None
    fits: bool | None = None
    settings: Mapping[str, str | int] | None = None
    kind: RunKind | None = None
    shape: RunShape | None = None

    @property
    def error(self) -> float | None:
        return _error(self.simulated_s, self.iteration_time_s)

    @property
    def peak_error(self) -> float | None:
        return _error(self.simulated_peak_bytes, self.peak_bytes)


def _error(simulated: float | None, measured: float | None) -> float | None:
    return None if simulated is None or measured is None else simulated / measured - 1


@dataclass(frozen=True, slots=True)
class Errors(PlainData):
    """Statistics of errors (predicted / measured - 1); None of no errors.

    Args:
        bias: mean of the errors: below zero if predictions are too low.
        within_10_percent: share of predictions within 10 % of the measurement.
    """

    num: int = 0
    mean_abs_error: float | None = None
    median_error: float | None = None
    bias: float | None = None
    p5: float | None = None
    p25: float | None = None
    p75: float | None = None
    p95: float | None = None
    within_10_percent: float | None = None
    worst_error: float | None = None

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> Errors:
        """Return the statistics of the errors that are not None."""
        known = [error for error in errors if error is not None]
        if not known:
            return cls()
        amounts = np.abs(known)
        statistics = (
            *(np.mean(amounts), np.median(amounts), np.mean(known)),
            *np.percentile(known, (5, 25, 75, 95)),
            *(np.mean(amounts <= CLOSE), max(known, key=abs)),
        )
        return cls(len(known), *map(float, statistics))


@dataclass(frozen=True, slots=True)
class FieldEffect(PlainData):
    """A field that differs between two runs, with its values.

    Args:
        change: of the first run's simulated time with the second's value, as a share; None if the
            field changes with the one before.
    """

    field: str
    first: Any
    second: Any
    change: float | None


@dataclass(frozen=True, slots=True)
class RunDifference(PlainData):
    """Times of the second of two runs, divided by those of the first, and what differs."""

    measured: float
    simulated: float
    unexplained: float
    effects: Sequence[FieldEffect]

    def __str__(self) -> str:
        parts = f"{self.simulated:.3g} simulated, {self.unexplained:.3g} unexplained"
        return f"B takes {self.measured:.3g} times as long as A: {parts}"


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Answer):
    """Predictions of measured runs on one machine.

    Args:
        interval_coverage, half_interval_coverage: share of the measured times that are in their
            90 % and 50 % intervals.
        difference: why the second of two runs takes longer or shorter; None of other numbers.
    """

    json_fields: ClassVar = keys(
        """cluster num_rows num_simulated num_refused most_do_not_fit **time_errors
        interval_coverage half_interval_coverage memory=peak_errors **fits rows difference"""
    )
    json_omits_none: ClassVar = frozenset({"difference"})

    cluster: str
    rows: Sequence[ValidatedRun]
    time_errors: Errors
    peak_errors: Errors
    interval_coverage: float | None
    half_interval_coverage: float | None
    difference: RunDifference | None = None

    @classmethod
    def of(cls, cluster: str, rows: Sequence[ValidatedRun]) -> Validation:
        timed = [row for row in rows if row.error is not None]
        intervals = [(row.interval, row.iteration_time_s or 0.0) for row in timed if row.interval]
        return cls(
            cluster,
            rows,
            Errors.of(row.error for row in timed),
            Errors.of(row.peak_error for row in rows),
            _share([interval.has(time_s) for interval, time_s in intervals]),
            _share([interval.has_in_half(time_s) for interval, time_s in intervals]),
        )

    def with_difference(self, runs: Iterable[MeasuredRun]) -> Validation:
        """Return the validation of exactly two runs with what differs between them."""
        if self.time_errors.num != 2 or self.num_rows != 2:
            return self
        first, second = (run.scenario for run in runs)
        first_s, second_s = (row.iteration_time_s or 0.0 for row in self.rows)
        assert first and second, "a run with a predicted time has a scenario"
        return replace(self, difference=difference_of(first, second, second_s / first_s))

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def num_simulated(self) -> int:
        return sum(not row.refusal for row in self.rows)

    @property
    def num_refused(self) -> int:
        return self.num_rows - self.num_simulated

    @property
    def fits(self) -> dict[str, int]:
        """How many simulated runs had enough memory, and how many of these are predicted so."""
        fits = [(row.ran, bool(row.fits)) for row in self.rows if not row.refusal]
        num_ran = sum(ran for ran, _ in fits)
        return {
            "num_ran": num_ran,
            "num_ran_and_fit": fits.count((True, True)),
            "num_out_of_memory": len(fits) - num_ran,
            "num_out_of_memory_and_does_not_fit": fits.count((False, False)),
        }

    @property
    def headline(self) -> str:
        """The answer in one line: mean errors, and how many rows they are of."""
        kinds = {"mean |error|": self.time_errors, "of peaks": self.peak_errors}
        words = [f"{name} {e.mean_abs_error:.1%}" for name, e in kinds.items() if e.mean_abs_error]
        if not self.is_close:
            words.append(f"OK is up to {MOST_MEAN_ERROR:.0%}")
        elif self.most_do_not_fit:
            words.append("most do not fit")
        rows = f"{self.num_simulated} of {counted(self.num_rows, 'row')} simulated"
        return ", ".join([*words, rows]) + (f"; {self.difference}" if self.difference else "")

    @property
    def is_close(self) -> bool:
        """Whether predictions are near enough to be called OK; also true if nothing is compared."""
        means = (self.time_errors.mean_abs_error, self.peak_errors.mean_abs_error)
        return all(mean is None or mean <= MOST_MEAN_ERROR for mean in means)

    @property
    def most_do_not_fit(self) -> bool:
        """Whether most runs that ran are predicted not to fit: they ran with other settings."""
        num_ran = self.fits["num_ran"]
        return num_ran >= _FEWEST_THAT_RAN and 2 * self.fits["num_ran_and_fit"] < num_ran


def _share(answers: Sequence[bool]) -> float | None:
    return sum(answers) / len(answers) if answers else None


def error_classes(validation: Validation, source: str) -> ValidatedOn:
    """Return the errors of the runs by software stack, data type, kind of model and nodes.

    Runs on one node and on several are one class if either are few.
    """
    groups: dict[_Class, list[ValidatedRun]] = {}
    timed = [(row, row.kind) for row in validation.rows if row.kind and row.error is not None]
    for row, kind in timed:
        key = kind.software, kind.data_type, kind.has_experts, kind.is_hybrid
        groups.setdefault(key, []).append(row)
    runs = [
        _measured_runs(key, nodes, rows, source)
        for key, group in sorted(groups.items())
        for nodes, rows in _by_nodes(group)
    ]
    summary = f"{counted(len(timed), 'measured iteration')}, compared by simtrain validate."
    return ValidatedOn(version=2, summary=summary, measured_runs=runs)


def _by_nodes(rows: Sequence[ValidatedRun]) -> list[tuple[Nodes | None, Sequence[ValidatedRun]]]:
    parts: dict[Nodes, list[ValidatedRun]] = {}
    for row in rows:
        if row.kind:
            parts.setdefault(row.kind.nodes, []).append(row)
    if len(parts) > 1 and min(map(len, parts.values())) < _FEWEST_RUNS:
        return [(None, rows)]
    return [*parts.items()]


def errors_text(errors: ValidatedOn) -> str:
    """Return errors as a file of `hw_profiles/validated_on`."""
    data = errors.model_dump(mode="json", exclude_none=True)
    return yaml_text(data, lambda value: isinstance(value, list) and isinstance(value[0], float))


def _measured_runs(
    key: _Class, nodes: Nodes | None, rows: Sequence[ValidatedRun], source: str
) -> MeasuredRuns:
    software, data_type, has_experts, is_hybrid = key
    gpus = sorted(int((row.settings or {})["GPUs"]) for row in rows)
    shares = (row.extrapolated or 0.0 for row in rows)
    rows = sorted(rows, key=lambda row: row.error or 0.0)
    return MeasuredRuns(
        runs=f"{data_type}: {gpus[0]:,} to {gpus[-1]:,} GPUs",
        errors=[max(round(row.error or 0.0, 4), _LOWEST) for row in rows],
        shapes=[[round(part, 3) for part in row.shape] for row in rows if row.shape] or None,
        extrapolated=round(math.fsum(shares) / len(rows), 3),
        software=software,
        data_types=[data_type],
        has_experts=has_experts,
        is_hybrid=is_hybrid,
        nodes=nodes,
        remark="say here whether the runs were seen before a number was chosen",
        source=source,
    )


_MOST_ALIVE = 256
"""Different scenarios after which what is cached of them is forgotten."""


def validate_runs(
    runs: Sequence[MeasuredRun] | Runs,
    cluster: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Validation:
    """Simulate every run that can be simulated, and hold it against its measurement.

    Runs of the same scenario are simulated once.
    """
    simulations = _Simulations()
    rows = []
    for done, run in enumerate(runs):
        on_progress(done, len(runs))
        measured = {name: getattr(run, name) for name in MeasuredRun.__slots__}
        measured |= {"scenario": None, "assumed": tuple(map(sys.intern, run.assumed))}
        row = ValidatedRun(**measured | simulations.of(run))
        rows.append(row if run.peak_bytes else replace(row, simulated_peak_bytes=None))
    on_progress(len(runs), len(runs))
    return Validation.of(cluster, rows)


def difference_of(first: Scenario, second: Scenario, measured: float) -> RunDifference:
    """Simulate the first of two runs with each setting of the second.

    Defaults that follow from a setting change with it. Settings that no legal run on the GPUs of
    either has alone change together, after all others.
    """
    difference = Difference(simulate(first), simulate(second))
    changed, base_s = difference.changed_fields, difference.base.iteration_time_s
    theirs, second_s = settings_of(second), difference.other.iteration_time_s
    values = {
        section: theirs[section] if section in theirs else value_at(second, section)
        for section in map(_section, changed)
    }
    trials, changes = list[tuple[list[str], Scenario]](), dict[str, float | None]()
    for section, value in values.items():
        with suppress(InputError):
            trial = first.replace({section: value})
            now = settings_of(trial)
            equal = [name for name in changed if now.get(name) == theirs.get(name)]
            equal.sort(key=lambda name, section=section: _section(name) != section)  # type: ignore[misc]
            if equal and trial.num_gpus in (first.num_gpus, second.num_gpus):
                trials.append((equal, trial))
    for names, trial in sorted(trials, key=lambda trial: -len(trial[0])):
        with suppress(InputError):
            if not changes.keys() & names:
                change = simulate(trial).iteration_time_s / base_s - 1
                changes |= dict.fromkeys(names) | {names[0]: change}
    if rest := [name for name in changed if name not in changes]:
        others = {section: values[section] for section in map(_section, changes)}
        changes |= dict.fromkeys(rest)
        with suppress(InputError):
            changes[rest[0]] = second_s / simulate(first.replace(others)).iteration_time_s - 1
    effects = [FieldEffect(name, *changed[name], change) for name, change in changes.items()]
    simulated = second_s / base_s
    return RunDifference(measured, simulated, measured / simulated, effects)


def _section(name: str) -> str:
    """Return what changes as one: a field, or a section whose fields alone mean nothing."""
    parts = name.split(".")
    return ".".join(parts[: 1 if parts[0] in ("recompute", "hardware") else 2])


class _Simulations:
    """Simulates different scenarios once, in memory that does not grow with their number.

    What remains of a scenario is the figures of its rows.
    """

    def __init__(self) -> None:
        self._evaluator = Evaluator(allow_oom=True)
        self._rows: dict[bytes, dict[str, Any]] = {}

    def of(self, run: MeasuredRun) -> dict[str, Any]:
        """Return what is predicted for a run, by fields of `ValidatedRun`."""
        if run.scenario is None:
            return {}
        settings = run.scenario.model_dump_json(exclude={"name", "description"})
        text = f"{run.peak_of} {settings}"
        key = sha256(text.encode()).digest()
        if key not in self._rows:
            if len(self._rows) % _MOST_ALIVE == _MOST_ALIVE - 1:
                self._evaluator = Evaluator(allow_oom=True)
                forget_cached()
            self._rows[key] = self._simulated(run, run.scenario)
        return self._rows[key]

    def _simulated(self, run: MeasuredRun, scenario: Scenario) -> dict[str, Any]:
        evaluator = self._evaluator
        try:
            evaluation = evaluator.evaluate(scenario)
        except InputError as error:
            return {"refusal": in_one_line(error)}
        scenario, result = evaluation.scenario, evaluation.run
        assert result, "`allow_oom` simulates every scenario"
        return {
            "simulated_peak_bytes": _peak_bytes(run.peak_of, evaluation, evaluator),
            "fits": evaluation.fits,
            "settings": _settings(scenario),
            "simulated_s": result.iteration_time_s,
            "breakdown_s": result.breakdown_s,
            "kind": run_kind(scenario, result.profile),
            "shape": result.shape,
            "extrapolated": result.extrapolated_compute,
            "interval": result.interval,
        }


def _settings(scenario: Scenario) -> dict[str, str | int]:
    split, model = scenario.parallelism, scenario.model
    layout = {"pipeline": split.pipeline, "interleave": scenario.num_chunks, "data": split.data}
    return {
        **{"GPUs": scenario.num_gpus, "tensor": split.tensor, **layout},
        **{"context": split.context, "expert": split.expert, "microbatch": scenario.batch.micro},
        **{"sequence": model.seq_length, "width": model.hidden_size},
        **{"data type": scenario.precision.compute, "recompute": scenario.recompute.strategy},
    }


def _peak_bytes(peak_of: PeakOf, evaluation: Evaluation, evaluator: Evaluator) -> int | None:
    if peak_of is PeakOf.GPU:
        return evaluation.peak_bytes
    scenario = evaluation.scenario
    stages = memory_on(scenario, evaluator.machine_of(scenario)).stages
    tensors_bytes = [stage.peak_bytes - stage.allocator_bytes for stage in stages]
    return tensors_bytes[-1] if peak_of is PeakOf.LAST_STAGE else max(tensors_bytes)
