"""The answer to a scenario: iteration time, utilization, and where the time goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from simtrain.engine import Timeline
from simtrain.extras import require
from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.replay import IterationTimeline
from simtrain.memory.report import MemoryCurve, MemoryReport, memory_curve
from simtrain.plan import Plan
from simtrain.programs.seconds import IterationSeconds
from simtrain.report.breakdown import Breakdown, breakdown_by_name, mean_breakdown
from simtrain.report.operators import Operators, operators_of
from simtrain.report.rows import breakdown_rows, memory_rows, timeline_rows
from simtrain.scenario import Scenario
from simtrain.units import format_bytes, format_seconds

_ALIGNED_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated iteration; `stages` holds one breakdown a pipeline stage.

    `seconds` are those of the parts of the iteration. `memory` says what each stage holds and
    whether it fits; `recompute_choice` what was chosen and why, where the scenario left it open.
    `extrapolated` names the ops that lie outside what the profile was fitted on;
    `extrapolated_compute` is the share of the kernels' time with such shapes, 0 to 1.
    """

    plan: Plan
    profile: HardwareProfile
    seconds: IterationSeconds
    iteration: IterationTimeline
    memory: MemoryReport
    stages: tuple[Breakdown, ...]
    model_flops: int
    hardware_flops: int
    extrapolated: tuple[str, ...]
    extrapolated_compute: float
    recompute_choice: str | None = None

    @property
    def scenario(self) -> Scenario:
        """The question, with the recompute that was chosen where it was open."""
        return self.plan.scenario

    @property
    def timeline(self) -> Timeline:
        """When each task ran."""
        return self.iteration.timeline

    def memory_curve(self, stage: int) -> MemoryCurve:
        """What a rank of a stage holds over time."""
        return memory_curve(self.plan, self.profile, self.iteration, stage)

    def operators(self, stage: int | None = None) -> Operators:
        """The operators of a stage, by default of the slowest: `simtrain run --ops`.

        Raises:
            InputError: the pipeline has no such stage.
        """
        return operators_of(self, stage)

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
        return breakdown_by_name(self.breakdown)

    @property
    def critical_path_s(self) -> dict[str, float]:
        """Seconds of the critical path by kind of task: forward, backward, transfer, ...

        They add up to the iteration time.
        """
        kinds: dict[str, list[float]] = {}
        for span in self.timeline.critical_path():
            kinds.setdefault(span.kind, []).append(span.duration_s)
        return {kind: math.fsum(seconds) for kind, seconds in kinds.items()}

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (paper, Section 6.3)."""
        return self.model_flops / self._peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: recomputed FLOPs count too."""
        return self.hardware_flops / self._peak_flops

    @property
    def mfu_by_peak(self) -> dict[str, float]:
        """Model FLOPs utilization against the peak of bf16 products, and of what linear layers run.

        `mfu` is the first, whatever is trained: the throughput that Megatron-LM prints (TFLOP/s a
        GPU) is read against the bf16 peak too, so that runs in fp8 and in bf16 compare by speed.
        """
        precision, whole_s = self.scenario.precision, self.scenario.num_gpus * self.iteration_time_s
        name = "fp8" if precision.compute == "fp8" else precision.product_type
        types = {"bf16": "bf16", name: precision.linear_product_type}
        return {
            name: self.model_flops / ((self.profile.peak_flops(type_) or math.inf) * whole_s)
            for name, type_ in types.items()
        }

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the global batch per second."""
        tokens = self.scenario.batch.global_ * self.scenario.model.seq_length
        return tokens / self.iteration_time_s

    @property
    def host_bound(self) -> float:
        """Share of the iteration in which GPUs wait for the host to launch kernels, 0 to 1.

        The mean over the stages.
        """
        return self.breakdown.launch_s / self.iteration_time_s

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, not divided over any ranks."""
        return self.plan.num_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters that a token meets: of the experts of a layer, those to which it goes."""
        return self.plan.num_active_parameters

    @property
    def parameters_in_words(self) -> str:
        """Both numbers of parameters, if they differ."""
        active = f", {self.num_active_parameters:,} of them active"
        return f"{self.num_parameters:,}" + (active if self.scenario.model.experts else "")

    @property
    def num_simulated_ranks(self) -> int:
        """Ranks with a stream of their own; their tensor and data peers do the same."""
        return self.scenario.parallelism.pipeline

    @property
    def _peak_flops(self) -> float:
        """FLOPs that all GPUs could do in the iteration."""
        return self.profile.gpu.peak_flops.value * self.scenario.num_gpus * self.iteration_time_s

    @property
    def summary(self) -> dict[str, str]:
        """The figures that most people look for, in words."""
        peak, capacity = self.memory.fullest.peak_bytes, self.memory.capacity_bytes
        return {
            "scenario": self.scenario.name or "unnamed",
            "iteration time": format_seconds(self.iteration_time_s),
            "parameters": self.parameters_in_words,
            "MFU": f"{self.mfu:.1%}",
            "HFU": f"{self.hfu:.1%}",
            "GPUs": f"{self.scenario.num_gpus:,} of {self.profile.name}",
            "peak memory": f"{format_bytes(peak)} of {format_bytes(capacity)}",
        }

    def __repr__(self) -> str:
        (_, name), (_, time), *others = self.summary.items()
        return f"<Result {name}: {time}, " + ", ".join(f"{k} {v}" for k, v in others) + ">"

    def _repr_html_(self) -> str:
        """The summary and the breakdown as a table, for notebooks."""
        figures = self.summary
        for name, seconds in self.breakdown_s.items():
            share = seconds / self.iteration_time_s
            figures[name] = f"{format_seconds(seconds)} ({share:.1%})"
        rows = (
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in figures.items()
        )
        return f"<table>{''.join(rows)}</table>"

    def frame(self, table: Literal["breakdown", "memory", "timeline"]) -> Any:
        """A pandas.DataFrame: each stage's seconds by cause or peak by component, or each task.

        Raises:
            InputError: pandas is not installed.
        """
        require("a frame", "pandas", instead=", or take the same numbers from Result.to_dict()")
        import pandas

        match table:
            case "breakdown":
                return pandas.DataFrame(breakdown_rows(self.stages))
            case "memory":
                return pandas.DataFrame(memory_rows(self.memory))
            case "timeline":
                return pandas.DataFrame(timeline_rows(self.timeline))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the real iteration slower than the simulated one, a sentence each.

        Tensor Cores are efficient only where rows of 16-bit operands are multiples of 16 bytes
        (NVIDIA, Matrix Multiplication Background User's Guide). A head's channels are such rows in
        the unfused core of attention; the fused kernels refuse them (rule E330).
        """
        model, channels = self.scenario.model, self.scenario.model.kv_channels
        is_fused = self.scenario.attention_backend == "fused"
        if is_fused or model.latent_attention or channels % _ALIGNED_CHANNELS == 0:
            return ()
        return (
            f"Heads have {channels} channels, no multiple of {_ALIGNED_CHANNELS}: on the GPU the "
            "batched products of attention are slower than simulated. How much is not modelled.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in full precision."""
        return {
            "scenario": self.scenario.name,
            "strategy": self.scenario.strategy,
            "attention_backend": self.scenario.attention_backend,
            "software": self.scenario.software.stack,
            "cluster": self.profile.name,
            "num_parameters": self.num_parameters,
            "num_active_parameters": self.num_active_parameters,
            "num_gpus": self.scenario.num_gpus,
            "num_simulated_ranks": self.num_simulated_ranks,
            "iteration_time_s": self.iteration_time_s,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "host_bound": self.host_bound,
            "mfu_by_peak": self.mfu_by_peak,
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "breakdown_s": self.breakdown_s,
            "stages_s": [breakdown_by_name(stage) for stage in self.stages],
            "memory": self.memory.to_json(),
            "recompute_choice": self.recompute_choice,
            "extrapolated": list(self.extrapolated),
            "extrapolated_compute": self.extrapolated_compute,
            "warnings": list(self.warnings),
        }
