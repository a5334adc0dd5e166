"""Find the cheapest change that makes a scenario fit in memory.

Single changes and pairs of changes on the same GPUs are tried first. If none of them is enough,
more GPUs are tried, alone and with one other change. The cheapest change has the fewest GPU-seconds
per iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Generic, Protocol, TypeVar, get_args

from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import DoesNotFitError, InputError
from simtrain.iteration.memory.report import COMPONENT_LABELS, MemoryReport
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.scenario.recompute_section import Strategy
from simtrain.studies import choose
from simtrain.units import counted, format_seconds, gib

Change = tuple[str, Any]
"""A field of the scenario and its new value."""
_FACTORS = (2, 4, 8)
_AUTO: Change = ("recompute", "auto")


class IterationWithMemory(choose.TimedIteration, Protocol):
    """A simulated iteration with its memory."""

    @property
    def memory(self) -> MemoryReport:
        """Memory per stage."""


R = TypeVar("R", bound=IterationWithMemory)


@dataclass(frozen=True, slots=True)
class Remedy(Generic[R]):
    """Changes that make a scenario fit, and the changed scenario's iteration."""

    changes: tuple[Change, ...]
    scenario: Scenario
    run: R

    @property
    def cost_gpu_s(self) -> float:
        """GPU-seconds per iteration."""
        return self.scenario.num_gpus * self.run.iteration_time_s

    @property
    def options(self) -> str:
        """The changes as options of the command line."""
        return _options(self.changes)


def cheapest_change(
    scenario: Scenario,
    simulate: Callable[[Scenario], R],
    memory_of: Callable[[Scenario], MemoryReport],
    on_progress: Callable[[str], None],
) -> Remedy[R] | None:
    """Find the cheapest change that makes the scenario fit; None if none of the tried changes does.

    Args:
        scenario: a scenario that does not fit.
        simulate: runs a scenario; raises InputError if it is illegal.
        memory_of: memory of a scenario; raises InputError if it is illegal.
        on_progress: receives a description of the next attempt.
    """

    def outcome(changes: tuple[Change, ...]) -> Remedy[R] | None:
        """Try changes; None if the result is illegal or does not fit."""
        on_progress(f"it does not fit; trying {_options(changes)}")
        try:
            changed = scenario.replace(dict(changes))
            # The memory of a scenario with `auto` is only known after its simulation.
            if not choose.is_open(changed) and not memory_of(changed).fits:
                return None
            run = simulate(changed)
        except InputError:
            return None  # the framework refuses this combination
        return Remedy(changes, changed, run) if run.memory.fits else None

    for sets in (_without_more_gpus(scenario), *_with_more_gpus(scenario)):
        outcomes = map(outcome, sets)
        if remedies := [remedy for remedy in outcomes if remedy]:
            return min(remedies, key=lambda remedy: (remedy.cost_gpu_s, len(remedy.changes)))
    return None


def _without_more_gpus(scenario: Scenario) -> Iterator[tuple[Change, ...]]:
    changes = tuple(_changes(scenario))
    for size in (1, 2):
        for chosen in combinations(changes, size):
            if len({field for field, _ in chosen}) == size:
                yield chosen


def _with_more_gpus(scenario: Scenario) -> Iterator[list[tuple[Change, ...]]]:
    """For each factor: that many times the GPUs, alone and with one other change."""
    split = scenario.parallelism
    for factor in _FACTORS:
        wider = [
            ("parallelism.tensor", factor * split.tensor),
            ("parallelism.pipeline", factor * split.pipeline),
        ]
        yield [(more,) for more in wider] + [
            (more, change) for more in wider for change in _changes(scenario)
        ]


def _changes(scenario: Scenario) -> Iterator[Change]:
    """Single changes that save memory and differ from the scenario."""
    memory, split = scenario.memory, scenario.parallelism
    if not split.sequence_parallel:
        yield "parallelism.sequence_parallel", True
    if not memory.deallocate_outputs:
        yield "memory.deallocate_outputs", True
    for stage in range(memory.zero_stage + 1, 4):
        yield "memory.zero_stage", stage
    if scenario.recompute.strategy != "auto":
        yield _AUTO
    if scenario.batch.micro > 1:
        yield "batch.micro", scenario.batch.micro // 2
    if not memory.offload_optimizer:
        yield "memory.offload_optimizer", True


def _options(changes: tuple[Change, ...]) -> str:
    return " ".join(f"--set {field}={as_scalar(value)}" for field, value in changes)


def does_not_fit(
    scenario: Scenario, report: MemoryReport, remedy: Remedy[Result] | None
) -> DoesNotFitError:
    """Build the error: the stage that does not fit, its components, and the remedy."""
    fullest, name = report.fullest, scenario.name or "the scenario"
    if report.missing_bytes <= 0 and report.host:
        return DoesNotFitError.of(
            "E601",
            f"{name} does not fit: activations need {gib(report.host.needed_bytes)} GiB of the "
            f"{gib(report.host.capacity_bytes or 0)} GiB of a node's host",
            reason="the host holds each tensor from the start of its copy out to the end of its "
            "copy back",
            fix=f"{_advice(remedy)}, or run --allow-oom to simulate it anyway",
        )
    sizes = fullest.components_bytes
    parts = [f"{COMPONENT_LABELS[part]} {gib(size)}" for part, size in sizes.items()]
    return DoesNotFitError.of(
        "E601",
        f"{name} does not fit: stage {fullest.stage} needs "
        f"{gib(fullest.peak_bytes)} GiB of the {gib(report.capacity_bytes)} GiB of its GPU, "
        f"{gib(report.missing_bytes)} GiB too much",
        reason=f"its peak, during the {fullest.peak_words}, consists of (GiB) {', '.join(parts)}",
        fix=f"{_advice(remedy)}, or run --allow-oom to simulate it anyway",
    )


def _advice(remedy: Remedy[Result] | None) -> str:
    if remedy is None:
        return "none of the changes tried is enough: use GPUs with more memory, or more GPUs"
    run = remedy.run
    time = f"{format_seconds(run.iteration_time_s)} on {counted(remedy.scenario.num_gpus, 'GPU')}"
    changes, chosen = remedy.changes, ""
    if run.recompute_choice:
        words = run.recompute_choice.splitlines()[0].removesuffix(f" ({choose.FASTEST})")
        # A strategy can be written in the scenario; a choice that differs by stage cannot.
        if words in get_args(Strategy) and _AUTO in changes:
            changes = tuple(
                ("recompute", words) if change == _AUTO else change for change in changes
            )
        else:
            chosen = f", where recompute=auto chooses {words}"
    return (
        f"the cheapest change that fits is {_options(changes)}{chosen}: "
        f"{gib(run.memory.fullest.peak_bytes)} GiB, {time}"
    )
