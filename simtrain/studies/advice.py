"""Single changes of a scenario, each simulated: what saves the most time, and what makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import permutations
from typing import Any

from simtrain.base.plain_data import PlainData
from simtrain.base.values import dataclass
from simtrain.errors import DoesNotFitError, InputError
from simtrain.iteration.memory.report import COMPONENT_LABELS, MemoryReport
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_values
from simtrain.schedules import default_name
from simtrain.studies.changes import ZERO_STAGES, Change, all_values, changes_of
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.on_machine import plan_on, result_on
from simtrain.studies.requests import check_whole
from simtrain.studies.simulation import machine_of, result_of, scenario_of
from simtrain.units import counted, format_bytes, format_seconds, gib

_OVERLAPS = ("tensor_parallel", "userbuffers", "pipeline", "data_parallel", "shared_expert")
_COMPILED = "torchtitan_compiled"
"""The software stack of PyTorch with torch.compile."""
_FUSIONS = (
    *("fused_softmax", "fused_rotary", "fused_rms_norm", "fused_activation", "fused_dropout_add"),
    *("fused_cross_entropy", "fused_gradient_accumulation"),
)
Trial = tuple[Change, Evaluation]
"""A legal change, and its evaluation."""


def evaluated(
    scenario: Scenario,
    changes: Iterable[Change],
    evaluator: Evaluator,
    on_progress: Callable[[str], None],
) -> list[Trial]:
    """Evaluate the legal ones of some changes, each alone."""
    trials = list[Trial]()
    for change in changes:
        on_progress(f"trying {change.options}")
        with suppress(InputError):
            trials.append((change, evaluator.evaluate(change.applied_to(scenario))))
    return trials


# ------------------------------------------------------------------------- what saves time


@dataclass(frozen=True, slots=True)
class Advised(PlainData):
    """A change, and the iteration with it; whether predictions can tell it from the scenario."""

    options: str
    iteration_time_s: float
    saved: float
    can_be_told: bool
    peak_bytes: int
    more_bytes: int

    def __repr__(self) -> str:
        figures = f"{format_seconds(self.iteration_time_s)}, {format_bytes(self.peak_bytes)}"
        return f"<Advised {self.options}: {figures}, saves {self.saved:.1%}>"


@dataclass(frozen=True, slots=True)
class Advice(PlainData):
    """The changes that save the most time, the best first."""

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

    At most `top` changes are advised.
    """
    check_whole("E114", "top", top, 1, 10**6)
    now, scenario = result_of(scenario), scenario_of(scenario)
    now_s, now_bytes = now.iteration_time_s, now.memory.fullest.peak_bytes
    changes = [*_changes(scenario)]
    trials = evaluated(scenario, changes, Evaluator(machine=now.seconds.machine), on_progress)
    advised = [
        Advised(
            change.options,
            trial.iteration_time_s,
            1 - trial.iteration_time_s / now_s,
            bool(trial.run and Difference(now, trial.run).ratio.can_be_told),
            trial.peak_bytes,
            trial.peak_bytes - now_bytes,
        )
        for change, trial in trials
        if trial.fits and (trial.iteration_time_s < now_s or not now.memory.fits)
    ]
    advised.sort(key=lambda each: (each.iteration_time_s, each.options))
    return Advice(
        scenario.name,
        now_s,
        now_bytes,
        now.memory.fits,
        tuple(advised[:top]),
        len(trials),
        sum(not trial.fits for _, trial in trials),
        len(changes) - len(trials),
    )


def _changes(scenario: Scenario) -> Iterator[Change]:
    if scenario.program is not None:  # its ops are what they are, and a compiler may fuse them
        yield from changes_of(scenario, {"software.stack": [_COMPILED]})
        return
    yield from _of_split(scenario)
    yield from changes_of(scenario, _of_memory_and_kernels(scenario))
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
        yield Change({**change.values, "schedule": default_name(chunks)})
    if scenario.model.experts is not None:
        yield from changes_of(scenario, {"parallelism.expert": _near(split.expert)})
    yield from changes_of(scenario, {"parallelism.sequence_parallel": [True, False]})


def _near(number: int) -> tuple[int, int]:
    return 2 * number, max(number // 2, 1)


def _of_memory_and_kernels(scenario: Scenario) -> dict[str, Iterable[Any]]:
    """Return the values that trade time for memory, overlap or fuse more, and narrow products."""
    unfused = [name for name in _FUSIONS if not getattr(scenario.facts.kernels, name)]
    return {
        "batch.micro": _near(scenario.batch.micro),
        "recompute": [name for name in all_values("recompute.strategy") if name != "auto"],
        "memory.zero_stage": ZERO_STAGES,
        "memory.offload_optimizer": [False, True],
        **{f"overlap.{name}": [True] for name in _OVERLAPS},
        **{f"software.{name}": [True] for name in unfused},
        "attention_backend": ["fused"],
        "precision.compute": [] if scenario.precision.casts else ["fp8"],
    }


# ------------------------------------------------------------------------- what makes it fit


def simulate_fitting(
    scenario: Scenario, on_progress: Callable[[str], None] = lambda description: None
) -> Result:
    """Simulate a scenario, or raise a DoesNotFitError with the single change that helps, if any."""
    check_values(scenario)
    machine = machine_of(scenario, None, "auto")
    planned, choice = plan_on(scenario, machine)
    check_fits(scenario, planned.memory, machine, on_progress)
    return result_on(planned, choice)


def check_fits(
    scenario: Scenario,
    memory: MemoryReport,
    machine: Machine,
    on_progress: Callable[[str], None] = lambda description: None,
) -> None:
    """Refuse what needs more memory than a GPU has.

    The error has the stage that does not fit, its components, and the fastest change that helps.
    """
    if memory.fits:
        return

    def describe(attempt: str) -> None:
        on_progress(f"it does not fit; {attempt}")

    fullest, sizes = memory.fullest, memory.fullest.components_bytes
    parts = [f"{COMPONENT_LABELS[part]} {gib(size)}" for part, size in sizes.items()]
    what = (
        f"stage {fullest.stage} needs {gib(fullest.peak_bytes)} GiB of the "
        f"{gib(memory.capacity_bytes)} GiB of its GPU, {gib(memory.missing_bytes)} GiB too much"
    )
    reason = f"its peak, during the {fullest.peak_words}, consists of (GiB) {', '.join(parts)}"
    if memory.missing_bytes <= 0 and memory.host:
        what = memory.host.shortage
        reason = "the host holds the optimizer's states of all GPUs of its node"
    trials = evaluated(scenario, _changes(scenario), Evaluator(machine=machine), describe)
    fix = "no single change is enough: find a layout with simtrain search X --gpus N"
    # What surely fits comes first, and then the fastest.
    helps = min(
        (trial for trial in trials if trial[1].fits),
        key=lambda trial: (not trial[1].fit.fits_surely, trial[1].iteration_time_s),
        default=None,
    )
    if helps is not None:
        change, with_it = helps
        fit = with_it.fit
        fits = "fits" if fit.fits_surely else f"may fit ({fit.probability:.0%})"
        fix = (
            f"the fastest single change that {fits} is {change.options}: "
            f"{gib(with_it.peak_bytes)} GiB, {format_seconds(with_it.iteration_time_s)}"
        )
    message = f"{scenario.name or 'the scenario'} does not fit: {what}"
    fix += ", or run --allow-oom to simulate it anyway"
    raise DoesNotFitError.of("E601", message, reason=reason, fix=fix)
