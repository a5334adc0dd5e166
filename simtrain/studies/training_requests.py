"""What the cost of a training is asked for. Help reads it: it imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

CheckpointMode = Literal["async", "blocking"]


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
