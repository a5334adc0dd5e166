"""The answer to a scenario: iteration time, utilization, and where the time goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from simtrain.engine import Timeline
from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.curve import IterationTimeline
from simtrain.memory.report import MemoryCurve, MemoryReport, memory_curve
from simtrain.plan import Plan
from simtrain.report.breakdown import Breakdown, mean_breakdown
from simtrain.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated iteration; `stages` holds one breakdown a pipeline stage.

    `memory` says what each stage holds and whether it fits; `recompute_choice` what was chosen and
    why, where the scenario left it open. `extrapolated` names the ops that lie outside what the
    profile was fitted on.
    """

    plan: Plan
    profile: HardwareProfile
    ran: IterationTimeline
    memory: MemoryReport
    stages: tuple[Breakdown, ...]
    model_flops: int
    hardware_flops: int
    extrapolated: tuple[str, ...]
    recompute_choice: str | None = None

    @property
    def scenario(self) -> Scenario:
        """The question, with the recompute that was chosen where it was open."""
        return self.plan.scenario

    @property
    def timeline(self) -> Timeline:
        """When each task ran."""
        return self.ran.timeline

    def memory_curve(self, stage: int) -> MemoryCurve:
        """What a rank of a stage holds over time."""
        return memory_curve(self.plan, self.profile, self.ran, stage)

    @property
    def iteration_time_s(self) -> float:
        """Seconds from the first microbatch to the end of the optimizer step."""
        return self.timeline.makespan_s

    @property
    def breakdown(self) -> Breakdown:
        """The average over the stages; its parts add up to the iteration time."""
        return mean_breakdown(self.stages)

    @property
    def breakdown_s(self) -> dict[str, float]:
        """The same by name, as in the JSON: compute, recompute, bubble, ..."""
        return _without_suffix(self.breakdown)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (paper, Section 6.3)."""
        return self.model_flops / self._peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: recomputed FLOPs count too."""
        return self.hardware_flops / self._peak_flops

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the global batch per second."""
        tokens = self.scenario.batch.global_ * self.scenario.model.seq_length
        return tokens / self.iteration_time_s

    @property
    def num_simulated_ranks(self) -> int:
        """Ranks with a stream of their own; their tensor and data peers do the same."""
        return self.scenario.parallelism.pipeline

    @property
    def _peak_flops(self) -> float:
        """FLOPs that all GPUs could do in the iteration."""
        return self.profile.gpu.peak_flops.value * self.scenario.num_gpus * self.iteration_time_s

    def to_json(self) -> dict[str, Any]:
        """Plain data, in full precision."""
        return {
            "scenario": self.scenario.name,
            "strategy": self.scenario.strategy,
            "attention_backend": self.scenario.attention_backend,
            "cluster": self.profile.name,
            "num_gpus": self.scenario.num_gpus,
            "num_simulated_ranks": self.num_simulated_ranks,
            "iteration_time_s": self.iteration_time_s,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "breakdown_s": self.breakdown_s,
            "stages_s": [_without_suffix(stage) for stage in self.stages],
            "memory": self.memory.to_json(),
            "recompute_choice": self.recompute_choice,
            "extrapolated": list(self.extrapolated),
        }


def _without_suffix(breakdown: Breakdown) -> dict[str, float]:
    return {name.removesuffix("_s"): seconds for name, seconds in asdict(breakdown).items()}
