"""Lower bounds of a configuration's peak and of its iteration time, without simulating it.

None is ever above what is simulated, so a configuration that a bound rules out cannot win.
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
"""Sums in another order differ in their last digits."""


class Bounds:
    """Lower bounds of legal scenarios that differ from a base as the points of a space do.

    Args:
        base: the scenario around which the space lies.
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
        """A lower bound of the peak of the fullest stage.

        At every moment a rank holds its parameters, gradients and optimizer states. The first
        stage also keeps the activations of its layers, for as many microbatches and chunks as its
        schedule warms up with and one more. Whatever else it holds adds to them; what the allocator
        holds beside tensors grows with these.
        """
        fullest, first = self._rank(scenario).states_bytes
        tensors = max(fullest, first + self._activations_bytes(scenario))
        return tensors + allocator_bytes(self.machine.model.profile, tensors)

    def _activations_bytes(self, scenario: Scenario) -> int:
        """A lower bound of the activations that the first stage keeps at its fullest moment."""
        split, policy = scenario.parallelism, scenario.recompute
        if is_open(scenario):
            return 0
        sizes = split.pipeline, split.interleave, scenario.num_microbatches
        num_warmup = num_warmup_forwards(scenario.schedule, 0, *sizes)
        num_outstanding = min(num_warmup + 1, split.interleave * scenario.num_microbatches)
        # Units of full recompute keep one input for several layers.
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
        """What a pass of a layer depends on beside its recompute."""
        # Most points have these sections of the base itself.
        overlap = self._overlap if self._has_base("overlap", scenario) else overlap_of(scenario)
        return self._model_of(scenario), overlap, microbatch_of(scenario, self._mesh(scenario))

    def _model_of(self, scenario: Scenario) -> Chunk:
        return self._model if self._has_base("model", scenario) else gpt_blocks(scenario)

    def _has_base(self, section: str, scenario: Scenario) -> bool:
        return getattr(scenario, section) is getattr(self._base, section)

    def _mesh(self, scenario: Scenario) -> Mesh:
        return scenario.mesh(self._domains)

    def kernels_s(self, scenario: Scenario) -> float:
        """A lower bound of the iteration time: kernels alone, in a pipeline, then the optimizer.

        A stage runs the passes of its m microbatches one after another, and each pass takes at
        least the kernels of its layers and head, which share a stream: collectives, launches and
        what slows kernels down only add to that. Before the first of them, its microbatch has
        passed forward through the first chunks of all earlier stages, and after the last of them
        its microbatch passes backward through these: whatever the schedule, each chunk needs the
        one before it forward and the one after it backward. The last of these passes is the first
        stage's, which then has its gradients' norm and its parameters' update before it. So an
        iteration takes at least, for every stage i, with both passes of one microbatch taking c_j
        through the first chunk of stage j and w_i through all chunks of stage i,

            sum over j < i of c_j + m w_i + the first stage's kernels of the optimizer step.

        Where v chunks of p stages are equal, the first two are m w (1 + (p - 1) / (m v)): the
        bubble of the interleaved schedule (Narayanan et al. 2021, Section 2.2.2).
        """
        key = scenario.parallelism, scenario.batch, scenario.recompute, scenario.memory
        passes_s = self._pipelines.get(key)
        if passes_s is None:
            passes_s = self._pipelines[key] = self._kernels_of_pipeline_s(scenario)
        return _ROUNDING * (passes_s + self._rank(scenario).step_s)

    def iteration_s(self, scenario: Scenario) -> float:
        """A lower bound of the iteration time that is close to it: see `iteration_bound_s`.

        It times the passes of the scenario. Recompute that is open has the bound of its kernels,
        because which passes it runs follows from what fits.
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
        """What follows from the stages' parameters, and so from the split alone."""
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
        policy, num_microbatches = _certainly_again(scenario.recompute), scenario.num_microbatches
        layer_s, head_s = self._passes_s(*self._layer_of(scenario), policy)
        stages = _stage_layers(scenario.model.num_layers, scenario.parallelism)
        passes_s = max(
            passed * layer_s + num_microbatches * own * layer_s for passed, own in stages
        )
        # The head is on the last stage, which has the most stages before it.
        passed, own = stages[-1]
        return max(passes_s, passed * layer_s + num_microbatches * (own * layer_s + head_s))

    def _kernels_of_passes_s(
        self, model: Chunk, overlap: OverlapPolicy, batch: Microbatch, recompute: RecomputePolicy
    ) -> tuple[float, float]:
        """Seconds of the kernels of a layer, and of the head, for a microbatch both ways."""
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
    """Bytes of the fullest and the first stage's model states, seconds of the first's kernels of
    the optimizer step."""

    states_bytes: tuple[int, int]
    step_s: float


def _layers(model: Chunk) -> list[Block]:
    """The different layers; each layer of the model takes as much as the least of them, or more."""
    return [*dict.fromkeys(block for block, _ in model.runs if block.is_unit)]


@functools.lru_cache(maxsize=4096)
def _stage_layers(num_layers: int, split: Parallelism) -> tuple[tuple[int, int], ...]:
    """For each stage: layers of the first chunks of the stages before it, and its own."""
    stages = [split.layers_of_stage(stage, num_layers) for stage in range(split.pipeline)]
    passed = itertools.accumulate((own // split.interleave for own in stages), initial=0)
    return tuple(zip(passed, stages, strict=False))


def _certainly_again(policy: RecomputePolicy) -> RecomputePolicy:
    """The policy where every layer of every microbatch follows it, else none: at least that."""
    for_all = policy.method == "uniform" and policy.keep_microbatches == 0
    return policy if for_all and policy.strategy != "auto" else SAVE_ALL
