"""What studies are asked for. Help reads it: it imports nothing slow.

The request of a search is in `search/request.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simtrain.base.values import KW_ONLY, dataclass
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

CheckpointMode = Literal["async", "blocking"]


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """Why scenarios are slower or faster than the first; of a single one, what to change.

    Args:
        scenarios: scenarios, or results of `run`.
        top: the most changes of one scenario to print.
        schedules: compare all schedules that the pipeline of one scenario allows: time, bubble,
            peak memory and order.
        on_progress: receives a description of the next simulation.
    """

    scenarios: tuple[Scenario | Result, ...]
    top: int
    schedules: bool
    on_progress: Callable[[str], None]

    def __init__(
        self,
        *scenarios: Scenario | Result,
        top: int = 5,
        schedules: bool = False,
        on_progress: Callable[[str], None] = lambda description: None,
    ) -> None:
        values = (scenarios, top, schedules, on_progress)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class CostRequest:
    """A training with the iterations of a scenario.

    Args:
        scenario: a scenario, or a result of `run`.
        tokens: number of training tokens: 300B, 1.5T, 450e9. The training ends when they are done.
        days: days after which the training ends, in place of tokens: 54.
        gpus: GPUs of the training. Replicas are added; the global batch stays. Default: those of
            the scenario.
        goodput: share of the training time spent in iterations, such as 0.9. Failures, checkpoints
            and evaluations take the rest. Default: auto, drawn with failures; 1 for none.
        spares: nodes that wait to replace others. Default: with them, all nodes of the training
            are there with a probability of 95 %.
        checkpoint: async (default): a checkpoint stops the training for a snapshot and is written
            beside it; blocking: until it is written.
        interval: time between checkpoints: "600 s". Default: the one that loses least by Young's
            formula, but at least the time to write one.
        draws: trainings that are drawn. Default: 100.
        seed: of the random numbers: a whole number from 0 on.
        price: price per GPU, instead of the profile's, which is that on demand: "2.5 USD/h".
        pue: energy of the site over that of its nodes (power usage effectiveness): 1.2. The
            default of 1 leaves out cooling and power conversion.
        co2: emissions of electricity, in grams of CO2 per kWh: 380.
        on_progress: receives a phase, and how many of how many trainings are drawn.
    """

    scenario: Scenario | Result
    tokens: int | str | None = None
    _: KW_ONLY
    days: float | None = None
    gpus: int | None = None
    goodput: float | Literal["auto"] = "auto"
    spares: int | None = None
    checkpoint: CheckpointMode = "async"
    interval: str | None = None
    draws: int = 100
    seed: int = 0
    price: str | None = None
    pue: float = 1.0
    co2: float | None = None
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Iterations of a scenario, drawn with what its section `variation` says.

    Args:
        scenario: a scenario, or a result of `simulate`.
        draws: iterations that are drawn. Default: 100.
        seed: of the random numbers: a whole number from 0 on.
        on_progress: receives a phase, and how many of how many draws are done.
    """

    scenario: Scenario | Result
    _: KW_ONLY
    draws: int = 100
    seed: int = 0
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What a sweep is asked for.

    Args:
        sweep: a sweep file, the name of a shipped sweep, or what such a file contains:
            {"base": "gpt2_1_5b", "axes": {"batch.micro": [1, 2, 4]}}. The base may be a scenario.
            With `query`, a folder with results.
        out: folder for the results, to query later. None keeps only the rows.
        overrides: overrides of the base scenarios, such as "model.seq_length=4096".
        query: DuckDB SQL on the table `results` of a folder, in place of a run.
        workers: processes; with 1 this process computes everything, and None takes one per
            processor. A script with several workers needs `if __name__ == "__main__":`, because
            workers import it.
        on_progress: receives a phase, and how many of how many points are done.
    """

    sweep: str | Path | Mapping[str, Any]
    out: str | Path | None = None
    overrides: Sequence[str] = ()
    _: KW_ONLY
    query: str | None = None
    workers: int | None = 1
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None


@dataclass(frozen=True, slots=True)
class ValidationRequest:
    """Measured runs that are held against predictions.

    Args:
        files: tables of runs (CSV), or logs of Megatron-LM with their arguments; a folder of
            `calibrate measure`; or traces of PyTorch's profiler, one for each rank.
        cluster: hardware profile of the machine that was measured.
        software: software stack of runs whose table has no column for it. Default: the one with
            which the machine's profile was compared first.
        overrides: fields to set in every run, such as "overlap.data_parallel=true".
        on_progress: receives a phase, and how many of how many runs are done.
    """

    files: str | Path | Sequence[str | Path]
    cluster: str = ""
    software: str | None = None
    overrides: Sequence[str] = ()
    _: KW_ONLY
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None


def check_whole(code: str, name: str, value: object, least: int, most: int) -> None:
    """Refuse what is no whole number in a range, or None; `name` is an option or an argument."""
    if value is None or (type(value) is int and least <= value <= most):
        return
    place = Location(name) if name.startswith("-") else None
    fix = f"write a whole number from {least:,} to {most:,}"
    raise InputError.of(code, f"{name} is {value!r}", place, fix)
