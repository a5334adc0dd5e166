"""Lower bounds of a configuration's peak memory and iteration time, without simulation.

A bound never exceeds the simulated value, so a configuration that a bound excludes cannot win.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from simtrain.memory.report import allocator_bytes
from simtrain.memory.states import model_states
from simtrain.memory.working import pass_memory
from simtrain.mesh import Domains, Mesh
from simtrain.plan import Plan, microbatch_of, overlap_of
from simtrain.programs.seconds import Machine
from simtrain.scenario import MemoryOptions, Parallelism, RecomputePolicy, Scenario
from simtrain.schedules import num_warmup_forwards
from simtrain.search.iteration_bound import iteration_bound_s
from simtrain.studies.choose import is_open
from simtrain.workload.chunk import Chunk, Parameters, chunk_of, parameters
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.model_chunks import cut_into_chunks
from simtrain.workload.ops import Op
from simtrain.workload.optimizer import (
    step_ops,
)
from simtrain.workload.passes import Pass, PassOptions
from simtrain.workload.recompute import SAVE_ALL
from simtrain.workload.record import record_pass
from simtrain.workload.step_options import StepOptions
from simtrain.workload.tape import Block, Microbatch
from simtrain.workload.work import Collective

_ROUNDING = 1 - 1e-9
"""Margin for sums in another order, which differ in their last digits."""


class Bounds:
    """Lower bounds for legal scenarios of a space.

    Args:
        base: the base scenario of the space.
        machine: times passes and optimizer steps.
    """

    def __init__(self, base: Scenario, machine: Machine) -> None:
        self.machine = machine
        self._base, self._model, self._overlap = base, gpt_blocks(base), overlap_of(base)
        self._ranks: dict[tuple[Parallelism, MemoryOptions, bool], _Rank] = {}
        self._pipelines: dict[tuple[object, ...], float] = {}
        self._passes_s = functools.cache(self._kernels_of_passes_s)
        self._kept_bytes = functools.cache(self._kept_bytes_of_layer)

    def peak_bytes(self, scenario: Scenario) -> int:
        """Lower bound of the peak of the fullest stage.

        A rank always holds its parameters, gradients and optimizer states. The first stage also
        saves the activations of its layers for its warm-up passes and one more. All other tensors
        add to these, and the allocator's overhead grows with the tensors.
        """
        fullest, first = self._rank(scenario).states_bytes
        tensors = max(fullest, first + self._activations_bytes(scenario))
        return tensors + allocator_bytes(self.machine.model.profile, tensors)

    def _activations_bytes(self, scenario: Scenario) -> int:
        """Lower bound of the saved activations at the first stage's peak."""
        split, policy = scenario.parallelism, scenario.recompute
        if is_open(scenario):
            return 0
        sizes = split.pipeline, split.interleave, scenario.num_microbatches
        num_warmup = num_warmup_forwards(scenario.schedule, 0, *sizes)
        num_outstanding = min(num_warmup + 1, split.interleave * scenario.num_microbatches)
        # A unit of full recompute saves one input for several layers.
        per_unit = policy.num_layers if policy.strategy == "full" else 1
        num_units = -(-scenario.layers_of_chunk(0) // per_unit)
        return num_outstanding * num_units * self._kept_bytes(*self._layer_of(scenario), policy)

    def _kept_bytes_of_layer(
        self, model: Chunk, overlap: OverlapPolicy, batch: Microbatch, policy: RecomputePolicy
    ) -> int:
        options = PassOptions(batch, overlap)
        passes = (Pass(chunk_of([layer]), "F", policy, options) for layer in _layers(model))
        return min(pass_memory(one).remaining_bytes for one in passes)

    def _layer_of(self, scenario: Scenario) -> tuple[Chunk, OverlapPolicy, Microbatch]:
        """Inputs of a layer's pass, except its recompute policy."""
        # Most points share these sections with the base.
        overlap = self._overlap if self._has_base("overlap", scenario) else overlap_of(scenario)
        return self._model_of(scenario), overlap, microbatch_of(scenario, self._mesh(scenario))

    def _model_of(self, scenario: Scenario) -> Chunk:
        return self._model if self._has_base("model", scenario) else gpt_blocks(scenario)

    def _has_base(self, section: str, scenario: Scenario) -> bool:
        return getattr(scenario, section) is getattr(self._base, section)

    def _mesh(self, scenario: Scenario) -> Mesh:
        return scenario.mesh(self._domains)

    def kernels_s(self, scenario: Scenario) -> float:
        """Quick lower bound of the iteration time: kernels in a pipeline, then the optimizer.

        A stage runs the passes of its m microbatches one after another. Each pass takes at least
        the time of its kernels, which share a stream; collectives, launches and slowdown only add
        to it. Before the stage's first pass, its microbatch passes forward through the first chunk
        of every earlier stage. After the stage's last pass, its microbatch passes backward through
        the same chunks. This holds for every schedule, because each chunk needs the previous chunk
        forward and the next chunk backward. The last pass is the first stage's, and is followed by
        the gradient norm and the parameter update. Let both passes of one microbatch take c_j
        through the first chunk of stage j, and w_i through all chunks of stage i. For every stage i
        the iteration takes at least

            sum over j < i of c_j + m w_i + the first stage's kernels of the optimizer step.

        If v chunks of p stages are equal, the first two terms are m w (1 + (p - 1) / (m v)): the
        bubble of the interleaved schedule (Narayanan et al. 2021, Section 2.2.2).
        """
        key = scenario.parallelism, scenario.batch, scenario.recompute, scenario.memory
        passes_s = self._pipelines.get(key)
        if passes_s is None:
            passes_s = self._pipelines[key] = self._kernels_of_pipeline_s(scenario)
        return _ROUNDING * (passes_s + self._rank(scenario).step_s)

    def iteration_s(self, scenario: Scenario) -> float:
        """Close lower bound of the iteration time: see `iteration_bound_s`.

        It times the scenario's passes. With `recompute: auto` the quick bound is returned, because
        the passes depend on the chosen policy.
        """
        kernels_s = self.kernels_s(scenario)
        if is_open(scenario):
            return kernels_s
        plan = Plan.of(scenario, self._domains)
        return max(kernels_s, _ROUNDING * iteration_bound_s(plan, self.machine))

    @property
    def _domains(self) -> Domains:
        return self.machine.model.profile.cluster.domains

    def _rank(self, scenario: Scenario) -> _Rank:
        """Values that depend on the stages' parameters, and so only on the split."""
        key = scenario.parallelism, scenario.memory, scenario.reduces_every_microbatch
        found = self._ranks.get(key)
        if found is None:
            mesh = self._mesh(scenario)
            layers = _stage_layers(scenario.model.num_layers, scenario.parallelism)
            stages = cut_into_chunks(
                self._model_of(scenario), tuple(own for _, own in layers)
            ).different
            microbatch, options = microbatch_of(scenario, mesh), StepOptions.of(scenario, mesh)
            held = [parameters((stage,), microbatch) for stage in stages]
            states = [
                model_states(options, one.total, one.experts, one.in_fp8).total_bytes
                for one in held
            ]
            step_s = self._kernels_of_step_s(options, held[0])
            found = self._ranks[key] = _Rank((max(states), states[0]), step_s)
        return found

    def _kernels_of_pipeline_s(self, scenario: Scenario) -> float:
        policy, num_microbatches = _certain_recompute(scenario.recompute), scenario.num_microbatches
        layer_s, head_s = self._passes_s(*self._layer_of(scenario), policy)
        stages = _stage_layers(scenario.model.num_layers, scenario.parallelism)
        passes_s = max(
            passed * layer_s + num_microbatches * own * layer_s for passed, own in stages
        )
        # The head is on the last stage.
        passed, own = stages[-1]
        return max(passes_s, passed * layer_s + num_microbatches * (own * layer_s + head_s))

    def _kernels_of_passes_s(
        self, model: Chunk, overlap: OverlapPolicy, batch: Microbatch, recompute: RecomputePolicy
    ) -> tuple[float, float]:
        """Kernel time of a layer and of the head, forward and backward, for one microbatch."""
        options = PassOptions(batch, overlap)
        *layers_s, head_s = (
            math.fsum(
                self._kernels_s(record_pass(Pass(chunk_of([block]), kind, recompute, options)).ops)
                for kind in ("F", "B")
            )
            for block in (*_layers(model), model.runs[-1][0])
        )
        return min(layers_s), head_s

    def _kernels_of_step_s(self, options: StepOptions, first: Parameters) -> float:
        ops = step_ops(options, first)
        serial = (ops.get(name, ()) for name in ("to_host", "norm", "update"))
        return self._kernels_s(itertools.chain.from_iterable(serial))

    def _kernels_s(self, ops: Iterable[Op]) -> float:
        return math.fsum(
            self.machine.model.seconds(op.work) for op in ops if not isinstance(op.work, Collective)
        )


@dataclass(frozen=True, slots=True)
class _Rank:
    """Model states and optimizer step.

    Args:
        states_bytes: model states of the fullest and of the first stage.
        step_s: kernel time of the first stage's optimizer step.
    """

    states_bytes: tuple[int, int]
    step_s: float


def _layers(model: Chunk) -> list[Block]:
    """The different layers; every layer of the model takes at least the minimum of them."""
    return [*dict.fromkeys(block for block, _ in model.runs if block.is_unit)]


@functools.lru_cache(maxsize=4096)
def _stage_layers(num_layers: int, split: Parallelism) -> tuple[tuple[int, int], ...]:
    """Per stage: layers in the first chunks of all earlier stages, and its own layers."""
    stages = [split.layers_of_stage(stage, num_layers) for stage in range(split.pipeline)]
    passed = itertools.accumulate((own // split.interleave for own in stages), initial=0)
    return tuple(zip(passed, stages, strict=False))


def _certain_recompute(policy: RecomputePolicy) -> RecomputePolicy:
    """The policy if every layer of every microbatch follows it; otherwise no recompute."""
    for_all = policy.method == "uniform" and policy.keep_microbatches == 0
    return policy if for_all and policy.strategy != "auto" else SAVE_ALL
