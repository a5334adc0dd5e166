"""What a search looks for, as a number of which less is better."""

from __future__ import annotations

from enum import StrEnum

from simtrain.evaluation import Evaluation
from simtrain.scenario import Scenario

Key = tuple[float, float]
"""What points are ranked by, the least first: the objective, and what decides between equals."""


class Objective(StrEnum):
    """Seconds of an iteration, GPU-seconds of it, bytes of its highest peak, or tokens a second.

    The batch is given, and with it the tokens: on one number of GPUs all but memory rank alike. A
    GPU's price is the same for all, so that GPU-seconds rank as what they cost.
    """

    TIME = "time"
    COST = "cost"
    MEMORY = "memory"
    TOKENS_PER_S = "tokens_per_s"

    def of_time(self, scenario: Scenario, time_s: float) -> float:
        """What an iteration of so many seconds is worth; grows with them. Not for memory."""
        match self:
            case Objective.COST:
                return scenario.num_gpus * time_s
            case Objective.TOKENS_PER_S:
                return -scenario.batch.global_ * scenario.model.seq_length / time_s
            case _:
                return time_s

    def key(self, evaluation: Evaluation) -> Key:
        """What to rank by: the objective, and between equals peak bytes (of memory: seconds).

        What was not run for want of memory ranks behind all others.
        """
        time_s = evaluation.run.iteration_time_s if evaluation.run else float("inf")
        return self.key_of(evaluation.scenario, time_s, evaluation.peak_bytes)

    def key_of(self, scenario: Scenario, time_s: float, peak_bytes: int) -> Key:
        """The key of an iteration of so many seconds with this peak; grows with both."""
        if self is Objective.MEMORY:
            return peak_bytes, time_s
        return self.of_time(scenario, time_s), peak_bytes

    @property
    def field(self) -> str:
        """The objective's field in results."""
        return {
            Objective.TIME: "iteration_time_s",
            Objective.COST: "gpu_seconds",
            Objective.MEMORY: "peak_bytes",
            Objective.TOKENS_PER_S: "tokens_per_s",
        }[self]
