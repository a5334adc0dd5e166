"""Time and FLOPs of a layer by recompute strategy and sequence length.

At 2048 tokens these are the cases of Table 4 and Figure 8 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simtrain.durations.model import DurationModel
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.paper.entries import Progress, reported
from simtrain.paper.layer_terms import RECOMPUTES
from simtrain.paper.models import MODELS, paper_plan, paper_scenario
from simtrain.scenario import Scenario
from simtrain.simulation import simulate_layer
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.record import record_pass

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
        for recompute, layer in _layers(model, sequence_parallel, length)
    }


def _layers(model: str, sequence_parallel: bool, length: int) -> list[tuple[str, LayerTime]]:
    overrides = (
        f"parallelism.sequence_parallel={str(sequence_parallel).lower()}",
        f"model.seq_length={length}",
    )
    scenarios = {name: paper_scenario(model, name, *overrides) for name in RECOMPUTES}
    saving, profile = scenarios["none"], profile_of(scenarios["none"])
    model_flops = sum(_flops(saving))
    _, saving_backward = simulate_layer(saving, profile)
    found = []
    for recompute, scenario in scenarios.items():
        forward, backward = simulate_layer(scenario, profile)
        forward_flops, backward_flops = _flops(scenario)
        layer = LayerTime(
            forward.duration_s,
            saving_backward.duration_s,
            backward.duration_s - saving_backward.duration_s,
            forward_flops,
            forward_flops + backward_flops - model_flops,
            forward_flops + backward_flops,
            *_count_ops(scenario, profile),
        )
        found.append((recompute, layer))
    return found


def _count_ops(scenario: Scenario, profile: HardwareProfile) -> tuple[int, int]:
    """Count a layer's ops in both passes, and those outside the profile's fitted range."""
    model = DurationModel(profile)
    works = [op.work for ops in _ops(scenario) for op in ops]
    return len(works), sum(map(model.is_extrapolated, works))


def _flops(scenario: Scenario) -> tuple[int, int]:
    """Return the FLOPs of the forward and of the backward pass."""
    forward, backward = map(total_flops, _ops(scenario))
    return forward, backward


def _ops(scenario: Scenario) -> tuple[list[Op], list[Op]]:
    """Record a layer, and return the ops of its forward and of its backward pass."""
    plan = paper_plan(scenario)
    forward, backward = (record_pass(plan.layers_pass(1, kind)).ops for kind in ("F", "B"))
    return [*forward], [*backward]
