"""Advice: single changes of a scenario that save the most time, each simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.errors import InputError
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.schedules import default_name
from simtrain.studies.changes import (
    ZERO_STAGES,
    Change,
    Trial,
    TrialVerdict,
    all_values,
    changes_of,
    ranked,
    try_each,
)
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.simulation import result_of, scenario_of
from simtrain.units import counted, format_bytes, format_seconds

_OVERLAPS = ("tensor_parallel", "userbuffers", "pipeline", "data_parallel", "shared_expert")
_COMPILED = "torchtitan_compiled"
"""The software stack of PyTorch with torch.compile."""
_FUSIONS = (
    *("fused_softmax", "fused_rotary", "fused_rms_norm", "fused_activation", "fused_dropout_add"),
    *("fused_cross_entropy", "fused_gradient_accumulation"),
)


@dataclass(frozen=True, slots=True)
class Advised(PlainData):
    """A change, and the iteration with it.

    Args:
        options: the change as options of the command line.
        iteration_time_s: iteration time with it.
        saved: share of the iteration time that it saves.
        peak_bytes: memory of the fullest GPU with it.
        more_bytes: memory that it needs in addition; negative if it frees some.
    """

    json_fields: ClassVar = keys("options iteration_time_s saved peak_bytes more_bytes")

    options: str
    iteration_time_s: float
    saved: float
    peak_bytes: int
    more_bytes: int

    def __repr__(self) -> str:
        figures = f"{format_seconds(self.iteration_time_s)}, {format_bytes(self.peak_bytes)}"
        return f"<Advised {self.options}: {figures}, saves {self.saved:.1%}>"


@dataclass(frozen=True, slots=True)
class Advice(PlainData):
    """The changes that save the most time, the best first.

    Args:
        scenario: its name.
        iteration_time_s: iteration time without a change.
        peak_bytes: memory of its fullest GPU.
        fits: whether it fits.
        advised: changes that save time and fit.
        num_tried: changes that were simulated.
        num_too_large: those of them that need more memory than there is.
        num_illegal: changes that break a rule, and were not simulated.
    """

    json_fields: ClassVar = keys(
        "scenario iteration_time_s peak_bytes fits advised num_tried num_too_large num_illegal"
    )

    scenario: str | None
    iteration_time_s: float
    peak_bytes: int
    fits: bool
    advised: tuple[Advised, ...]
    num_tried: int
    num_too_large: int
    num_illegal: int

    def __repr__(self) -> str:
        return f"<Advice for {self.scenario or 'unnamed'}: {self.headline}>"

    @property
    def headline(self) -> str:
        """The answer in one line: the change that saves the most."""
        if not self.advised:
            return f"none of {counted(self.num_tried, 'single change')} saves time"
        best, time = self.advised[0], format_seconds(self.iteration_time_s)
        return f"{best.options} saves {best.saved:.1%} of {time}"


def advise(
    scenario: Scenario | Result,
    top: int = 5,
    *,
    on_progress: Callable[[str], None] = lambda description: None,
) -> Advice:
    """Simulate single changes on the same GPUs, with the same model and global batch.

    Args:
        scenario: a scenario, or a result of `simulate`. It need not fit in memory.
        top: the most changes to advise.
        on_progress: receives a description of the next simulation.

    Raises:
        InputError: the scenario is illegal, or an argument is invalid.
    """
    if type(top) is not int or top < 1:
        raise InputError.of("E114", f"top is {top!r}", fix="write a whole number of at least 1")
    now, scenario = result_of(scenario), scenario_of(scenario)
    evaluator = Evaluator.on(now.seconds.machine)
    trials = [*try_each(_changes(scenario), evaluator.changing(scenario, on_progress))]
    now_s = now.iteration_time_s
    advised = [_advised(trial, now, now_s) for trial in ranked(trials, _time)]
    better = [
        change for change in advised if change.iteration_time_s < now_s or not now.memory.fits
    ]
    number_of = Counter(trial.verdict for trial in trials)
    return Advice(
        scenario.name,
        now_s,
        now.memory.fullest.peak_bytes,
        now.memory.fits,
        tuple(better[:top]),
        len(trials) - number_of[TrialVerdict.ILLEGAL],
        number_of[TrialVerdict.TOO_LARGE],
        number_of[TrialVerdict.ILLEGAL],
    )


def _time(trial: Trial[Change, Evaluation]) -> tuple[float, str]:
    return trial.evaluation.iteration_time_s, trial.change.options


def _advised(trial: Trial[Change, Evaluation], now: Result, now_s: float) -> Advised:
    time_s, peak_bytes = trial.evaluation.iteration_time_s, trial.evaluation.peak_bytes
    more_bytes = peak_bytes - now.memory.fullest.peak_bytes
    return Advised(trial.change.options, time_s, 1 - time_s / now_s, peak_bytes, more_bytes)


def _changes(scenario: Scenario) -> Iterator[Change]:
    if scenario.program is not None:  # its ops are what they are, and a compiler may fuse them
        yield from changes_of(scenario, {"software.stack": [_COMPILED]})
        return
    yield from _of_split(scenario)
    yield from changes_of(scenario, _of_memory(scenario) | _of_kernels(scenario))
    if not scenario.overlaps_parameter_gather:
        yield Change({"overlap.data_parallel": True, "overlap.parameter_gather": True})


def _of_split(scenario: Scenario) -> Iterator[Change]:
    """Yield twice or half of two axes, more or fewer chunks, and sequence parallelism."""
    split = scenario.parallelism
    sizes = {axis: getattr(split, axis) for axis in ("tensor", "pipeline", "context", "data")}
    for (more, wider), (fewer, narrower) in permutations(sizes.items(), 2):
        if narrower % 2 == 0:
            yield Change({f"parallelism.{more}": 2 * wider, f"parallelism.{fewer}": narrower // 2})
    for change in changes_of(scenario, {"parallelism.interleave": _near(split.interleave)}):
        (chunks,) = change.values.values()
        yield change | Change({"schedule": default_name(chunks)})
    if scenario.model.experts is not None:
        yield from changes_of(scenario, {"parallelism.expert": _near(split.expert)})
    yield from changes_of(scenario, {"parallelism.sequence_parallel": [True, False]})


def _near(number: int) -> tuple[int, int]:
    return 2 * number, max(number // 2, 1)


def _of_memory(scenario: Scenario) -> dict[str, Iterable[Any]]:
    """Return the values of what trades time for memory."""
    return {
        "batch.micro": _near(scenario.batch.micro),
        "recompute": [name for name in all_values("recompute.strategy") if name != "auto"],
        "memory.zero_stage": ZERO_STAGES,
        "memory.offload_optimizer": [False],
    }


def _of_kernels(scenario: Scenario) -> dict[str, Iterable[Any]]:
    """Return the values that overlap or fuse more, and narrower products."""
    unfused = [name for name in _FUSIONS if not getattr(scenario.facts.kernels, name)]
    return {
        **{f"overlap.{name}": [True] for name in _OVERLAPS},
        **{f"software.{name}": [True] for name in unfused},
        "attention_backend": ["fused"],
        "precision.compute": [] if scenario.precision.casts else ["fp8"],
    }
