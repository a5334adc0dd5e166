"""Advice: single changes of a scenario that save the most time, each simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import InputError
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.scenario.recompute_section import OPEN_STRATEGIES, Strategy
from simtrain.schedules.registry import default_name
from simtrain.studies.on_machine import simulate_on
from simtrain.studies.simulation import result_of, scenario_of
from simtrain.units import format_bytes, format_seconds

Changes = Mapping[str, Any]
"""Fields of a scenario and their new values, which are changed together."""
_OVERLAPS = ("tensor_parallel", "userbuffers", "pipeline", "data_parallel", "shared_expert")
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
        counts = f"{len(self.advised)} of {self.num_tried} changes"
        best = f", the best {self.advised[0].options}" if self.advised else ""
        return f"<Advice for {self.scenario or 'unnamed'}: {counts}{best}>"


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
    now = result_of(scenario)
    scenario = scenario_of(scenario)
    advised, num_tried, num_too_large, num_illegal = list[Advised](), 0, 0, 0
    for changes in _changes(scenario):
        options = " ".join(f"--set {field}={as_scalar(value)}" for field, value in changes.items())
        on_progress(f"trying {options}")
        try:
            result = simulate_on(scenario.replace(dict(changes)), now.seconds.machine)
        except InputError:
            num_illegal += 1
            continue
        num_tried += 1
        if not result.memory.fits:
            num_too_large += 1
        elif result.iteration_time_s < now.iteration_time_s or not now.memory.fits:
            advised.append(_advised(options, now, result))
    advised.sort(key=lambda change: (change.iteration_time_s, change.options))
    return Advice(
        scenario.name,
        now.iteration_time_s,
        now.memory.fullest.peak_bytes,
        now.memory.fits,
        tuple(advised[:top]),
        num_tried,
        num_too_large,
        num_illegal,
    )


def _advised(options: str, now: Result, result: Result) -> Advised:
    time_s, peak_bytes = result.iteration_time_s, result.memory.fullest.peak_bytes
    more_bytes = peak_bytes - now.memory.fullest.peak_bytes
    return Advised(options, time_s, 1 - time_s / now.iteration_time_s, peak_bytes, more_bytes)


def _changes(scenario: Scenario) -> Iterator[Changes]:
    """Yield changes that keep the model, the global batch and the GPUs."""
    yield from _of_split(scenario)
    yield from _of_microbatches(scenario)
    yield from _of_memory(scenario)
    yield from _of_kernels(scenario)


def _of_split(scenario: Scenario) -> Iterator[Changes]:
    """Yield twice or half of two axes, more or fewer chunks, and sequence parallelism."""
    split = scenario.parallelism
    sizes = {axis: getattr(split, axis) for axis in ("tensor", "pipeline", "context", "data")}
    for more, wider in sizes.items():
        for fewer, narrower in sizes.items():
            if more != fewer and narrower % 2 == 0:
                yield {
                    f"parallelism.{more}": 2 * wider,
                    f"parallelism.{fewer}": narrower // 2,
                }
    for chunks in {2 * split.interleave, max(split.interleave // 2, 1)} - {split.interleave}:
        yield {"parallelism.interleave": chunks, "schedule": default_name(chunks)}
    if scenario.model.experts is not None:
        for ranks in {2 * split.expert, max(split.expert // 2, 1)} - {split.expert}:
            yield {"parallelism.expert": ranks}
    yield {"parallelism.sequence_parallel": not split.sequence_parallel}


def _of_microbatches(scenario: Scenario) -> Iterator[Changes]:
    micro = scenario.batch.micro
    for size in {2 * micro, max(micro // 2, 1)} - {micro}:
        yield {"batch.micro": size}


def _of_memory(scenario: Scenario) -> Iterator[Changes]:
    """Yield what trades time for memory."""
    for strategy in get_args(Strategy):
        if strategy not in (*OPEN_STRATEGIES, scenario.recompute.strategy):
            yield {"recompute": strategy}
    for stage in range(4):
        if stage != scenario.memory.zero_stage:
            yield {"memory.zero_stage": stage}
    if scenario.memory.offload_optimizer:
        yield {"memory.offload_optimizer": False}


def _of_kernels(scenario: Scenario) -> Iterator[Changes]:
    """Yield what overlaps or fuses more, and narrower products."""
    for name in _OVERLAPS:
        if not getattr(scenario.overlap, name):
            yield {f"overlap.{name}": True}
    if not scenario.overlap.parameter_gather:
        yield {"overlap.data_parallel": True, "overlap.parameter_gather": True}
    for name in _FUSIONS:
        if not getattr(scenario.facts.kernels, name):
            yield {f"software.{name}": True}
    if scenario.attention_backend == "unfused":
        yield {"attention_backend": "fused"}
    if not scenario.precision.casts:
        yield {"precision.compute": "fp8"}
