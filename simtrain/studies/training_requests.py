"""What studies of whole trainings are asked for. Help reads it: it imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

CheckpointMode = Literal["async", "blocking", "memory"]
Recovery = Literal["all", "replica"]
PlanObjective = Literal["time", "cost"]


@dataclass(frozen=True, slots=True)
class GoodputRequest:
    """A whole training with the iterations of a scenario.

    Args:
        scenario: a scenario, or a result of `simulate`.
        tokens: number of training tokens: 300B, 1.5T, 450e9. The training ends when they are done.
        days: days after which the training ends, in place of tokens: 54.
        gpus: GPUs of the training. Replicas are added; the global batch stays. Default: those of
            the scenario.
        spares: nodes that wait to replace others. Default: with them, all nodes of the training
            are there with a probability of 95 %.
        checkpoint: async (default): a checkpoint stops the training for a snapshot and is written
            beside it; blocking: until it is written; memory: as async, but to the host memory of
            another node over the network, and loaded from there (Gemini, Wang et al. 2023).
        interval: time between checkpoints: "600 s". Default: the one that loses least by Young's
            formula, but at least the time to write one.
        recovery: what a failure stops: all replicas (default), or one replica, without which the
            others go on after a reconfiguration.
        reliability: hardware profile whose failures count. Default: the scenario's cluster, or
            h100_sxm if its profile has none.
        draws: trainings that are drawn. Default: 100.
        seed: of the random numbers: a whole number from 0 on.
        on_progress: receives a phase, and how many of how many trainings are drawn.
    """

    scenario: Scenario | Result
    _: KW_ONLY
    tokens: int | str | None = None
    days: float | None = None
    gpus: int | None = None
    spares: int | None = None
    checkpoint: CheckpointMode = "async"
    interval: str | None = None
    recovery: Recovery = "all"
    reliability: str | None = None
    draws: int = 100
    seed: int = 0
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None


@dataclass(frozen=True, slots=True)
class CostRequest:
    """A training with the iterations of a scenario.

    Args:
        scenario: a scenario, or a result of `simulate`.
        tokens: number of training tokens: 300B, 1.5T, 450e9.
        goodput: share of the training time spent in iterations, such as 0.9. Failures, checkpoints
            and evaluations take the rest. Default: auto, drawn as `simtrain.goodput` does.
        price: price per GPU, instead of the profile's, which is that on demand: "2.5 USD/h".
        pue: energy of the site over that of its nodes (power usage effectiveness): 1.2. The
            default of 1 leaves out cooling and power conversion.
        co2: emissions of electricity, in grams of CO2 per kWh: 380.
    """

    scenario: Scenario | Result
    tokens: int | str
    _: KW_ONLY
    goodput: float | Literal["auto"] = "auto"
    price: str | None = None
    pue: float = 1.0
    co2: float | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is asked for: a training run, clusters, numbers of GPUs and limits.

    Args:
        base: model and global batch; see `search` for the fields that keep their values.
        tokens: number of training tokens: 300_000_000_000 or "300B".
        clusters: names or paths of hardware profiles. A cluster with fewer GPUs than the largest
            of `gpus` gets more nodes.
        gpus: a number of GPUs, or several.
        days: maximum training time, in days.
        budget: maximum price: 2M, 500K, 2M USD.
        goodput, pue, co2: as for `simtrain.cost`, but a goodput of 1 by default.
        price: price per GPU of all clusters, such as "2.5 USD/h", instead of each profile's.
        objective: what sorts the rows: training time, or price (cost).
        seconds: time budget, shared by the combinations; see `search` for the result of a search
            that it ends.
        interrupted: polled; True ends the plan with the rows found so far.
        on_progress: receives the current search, the number of finished combinations, the number
            of all combinations, and the best row so far.
    """

    base: Scenario
    tokens: int | str
    clusters: Sequence[str]
    gpus: int | Sequence[int]
    _: KW_ONLY
    days: float | None = None
    budget: str | None = None
    goodput: float | Literal["auto"] = 1.0
    price: str | None = None
    pue: float = 1.0
    co2: float | None = None
    objective: PlanObjective = "time"
    seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    on_progress: Callable[[str, int, int, str], None] = lambda phase, done, total, best: None
