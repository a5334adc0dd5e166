"""Time and FLOPs of a layer by recompute strategy and sequence length.

At 2048 tokens these are the cases of Table 4 and Figure 8 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simtrain.durations.model import DurationModel
from simtrain.hardware.load import profile_of
from simtrain.paper.entries import Progress, reported
from simtrain.paper.layer_terms import RECOMPUTES
from simtrain.paper.layer_work import layer_ops
from simtrain.paper.models import MODELS, paper_scenario
from simtrain.studies.simulation import simulate_layer
from simtrain.workload.ops import total_flops

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Time and FLOPs of one layer with a strategy.

    Args:
        forward_s: time of the forward pass.
        backward_s: time of the backward pass without recompute.
        recompute_s: time that recompute adds to the backward pass, exposed collectives included.
        forward_flops: FLOPs of the forward pass.
        recompute_flops: FLOPs that run again.
        total_flops: all FLOPs, with those that run again.
        num_ops: number of ops in both passes.
        num_extrapolated: number of these outside the range that the profile was fitted on.
    """

    forward_s: float
    backward_s: float
    recompute_s: float
    forward_flops: int
    recompute_flops: int
    total_flops: int
    num_ops: int
    num_extrapolated: int

    @property
    def total_s(self) -> float:
        """Time of both passes."""
        return self.forward_s + self.backward_s + self.recompute_s


Times = dict[tuple[str, bool, str, int], LayerTime]
"""By model, sequence parallelism, recompute strategy and sequence length."""


def recompute_tax(
    models: Sequence[str] = MODELS,
    lengths: Sequence[int] = LENGTHS,
    on_progress: Progress | None = None,
) -> Times:
    """Simulate one layer of each model, under each strategy and for each sequence length."""
    return {
        (model, sequence_parallel, recompute, length): layer
        for model in reported(models, on_progress, lambda name: f"a layer of {name}")
        for length in lengths
        for sequence_parallel in (False, True)
        for recompute, layer in layer_times(
            model, length, sequence_parallel=sequence_parallel
        ).items()
    }


def layer_times(model: str, length: int = 2048, *, sequence_parallel: bool) -> dict[str, LayerTime]:
    """Simulate one layer with each recompute strategy."""
    overrides = (
        f"parallelism.sequence_parallel={str(sequence_parallel).lower()}",
        f"model.seq_length={length}",
    )
    scenarios = {name: paper_scenario(model, name, *overrides) for name in RECOMPUTES}
    saving, profile = scenarios["none"], profile_of(scenarios["none"])
    durations, times = DurationModel(profile), {}
    _, saving_backward = simulate_layer(saving, profile)
    model_flops = sum(map(total_flops, layer_ops(saving)))
    for recompute, scenario in scenarios.items():
        forward, backward = simulate_layer(scenario, profile)
        forward_ops, backward_ops = layer_ops(scenario)
        ops = [*forward_ops, *backward_ops]
        times[recompute] = LayerTime(
            forward_s=forward.duration_s,
            backward_s=saving_backward.duration_s,
            recompute_s=backward.duration_s - saving_backward.duration_s,
            forward_flops=total_flops(forward_ops),
            recompute_flops=total_flops(ops) - model_flops,
            total_flops=total_flops(ops),
            num_ops=len(ops),
            num_extrapolated=sum(durations.is_extrapolated(op.work) for op in ops),
        )
    return times
