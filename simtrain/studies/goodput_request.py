"""What a goodput is asked for. Help of commands reads it: it imports nothing slow."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

CheckpointMode = Literal["async", "blocking", "memory"]
Recovery = Literal["all", "replica"]
WithoutSpare = Literal["wait", "shrink"]


@dataclass(frozen=True, slots=True)
class GoodputRequest:
    """A whole training with the iterations of a scenario.

    Args:
        scenario: a scenario, or a result of `simulate`.
        tokens: number of training tokens: 300B, 1.5T, 450e9. The training ends when they are done.
        days: days after which the training ends, in place of tokens: 54.
        gpus: GPUs of the training: replicas and the global batch grow with them. Default: those of
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
        without_spare: what a stopped training does if no spare is there: wait (default) for a
            repair, or shrink: go on without a replica, whose other nodes become spares, and add it
            again once its nodes are there.
        reliability: hardware profile whose failures count. Default: the scenario's cluster, or
            h100_sxm if its profile has none.
        draws: trainings that are drawn. Default: 100.
        seed: of the random numbers: a whole number from 0 on.
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
    without_spare: WithoutSpare = "wait"
    reliability: str | None = None
    draws: int = 100
    seed: int = 0
