"""Objectives of a search, as numbers to minimise."""

from __future__ import annotations

from enum import StrEnum

from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluation

Key = tuple[float, float]
"""Ranking key, smallest first: the objective and a tie-breaker."""


class Objective(StrEnum):
    """Iteration time, GPU-seconds per iteration, largest peak in bytes, or tokens per second.

    The batch and so the tokens are fixed: on one number of GPUs all objectives but memory give the
    same ranking. All GPUs have the same price, so GPU-seconds rank as costs do.
    """

    TIME = "time"
    COST = "cost"
    MEMORY = "memory"
    TOKENS_PER_S = "tokens_per_s"

    def of_time(self, scenario: Scenario, time_s: float) -> float:
        """Objective of an iteration that takes `time_s`; grows with it. Not for memory."""
        match self:
            case Objective.COST:
                return scenario.num_gpus * time_s
            case Objective.TOKENS_PER_S:
                return -scenario.batch.global_ * scenario.model.seq_length / time_s
            case _:
                return time_s

    def key(self, evaluation: Evaluation) -> Key:
        """Ranking key: the objective, then peak bytes (for memory: seconds).

        Scenarios that do not fit rank last.
        """
        time_s = evaluation.run.iteration_time_s if evaluation.run else float("inf")
        return self.key_of(evaluation.scenario, time_s, evaluation.peak_bytes)

    def key_of(self, scenario: Scenario, time_s: float, peak_bytes: int) -> Key:
        """Ranking key of an iteration with this time and peak; grows with both."""
        if self is Objective.MEMORY:
            return peak_bytes, time_s
        return self.of_time(scenario, time_s), peak_bytes

    @property
    def field(self) -> str:
        """Name of the objective's field in results."""
        return {
            Objective.TIME: "iteration_time_s",
            Objective.COST: "gpu_seconds",
            Objective.MEMORY: "peak_bytes",
            Objective.TOKENS_PER_S: "tokens_per_s",
        }[self]
