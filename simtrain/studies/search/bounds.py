"""Lower bounds of a layout's peak memory and iteration time, without simulation.

A bound never exceeds the simulated value, so a layout that a bound excludes cannot win.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass

from simtrain.base.mesh import Domains, Mesh
from simtrain.iteration.memory.report import allocator_bytes
from simtrain.iteration.memory.states import model_states
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan, microbatch_of, overlap_of
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import MemoryOptions, Parallelism, RecomputePolicy, Scenario
from simtrain.studies.choose import is_open
from simtrain.studies.search.iteration_bound import iteration_bound_s
from simtrain.studies.search.pass_bound import PassBounds
from simtrain.workload.batch import GetBatch
from simtrain.workload.chunk import Chunk, chunk_of
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.hashing import shared
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.model_chunks import ModelChunks, cut_into_chunks, stage_parameters
from simtrain.workload.passes import Pass, PassOptions
from simtrain.workload.recompute import SAVE_ALL
from simtrain.workload.shard_groups import sharding_of
from simtrain.workload.step_options import StepOptions
from simtrain.workload.tape import Block, Microbatch

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
        self._chains: dict[Parallelism, _StageChunks] = {}
        self._pass_bounds = PassBounds(machine)
        self._both_passes_s = functools.cache(self._pass_bounds.both_s)
        self._kept_bytes = functools.cache(self._kept_bytes_of_layer)

    def peak_bytes(self, scenario: Scenario) -> int:
        """Lower bound of the peak of the fullest stage.

        A rank always holds its parameters, gradients and optimizer states. The first stage also
        saves the activations of its layers for its warm-up passes and one more. All other tensors
        add to these, and the allocator's overhead grows with the tensors.

        Another schedule than Megatron-LM's may have fewer passes in flight: activations do not
        count then.
        """
        fullest, first = self._rank(scenario).states_bytes
        if not scenario.schedule_family.has_proved_bound:
            return self._with_allocator(fullest)
        return self._with_allocator(max(fullest, first + self._activations_bytes(scenario)))

    def states_bytes(self, scenario: Scenario) -> int:
        """Quicker lower bound of the peak: without activations."""
        return self._with_allocator(self._rank(scenario).states_bytes[0])

    def _with_allocator(self, tensor_bytes: int) -> int:
        return tensor_bytes + allocator_bytes(self.machine.model.profile, tensor_bytes)

    def _activations_bytes(self, scenario: Scenario) -> int:
        """Lower bound of the saved activations at the first stage's peak."""
        split, policy = scenario.parallelism, scenario.recompute
        if is_open(scenario):
            return 0
        sizes = split.pipeline, split.interleave, scenario.num_microbatches
        num_outstanding = scenario.schedule_family.most_outstanding(*sizes)
        # A unit of full recompute saves one input for several layers.
        per_unit = policy.num_layers if policy.strategy == "full" else 1
        num_units = -(-min(scenario.chunks_layers[:: split.pipeline]) // per_unit)
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

    def ops_s(self, scenario: Scenario) -> float:
        """Quick lower bound of the iteration time: passes in a pipeline, then the optimizer step.

        A stage runs the passes of its m microbatches one after another, each for at least the time
        of `PassBounds`. Before the stage's first pass, its microbatch passes forward through the
        first chunk of every earlier stage. After the stage's last pass, its microbatch passes
        backward through the same chunks. This holds for every schedule, because each chunk needs
        the previous chunk forward and the next chunk backward. The last pass is the first stage's,
        and is followed by all parts of its optimizer step, one after another. Let both passes of
        one microbatch take c_j through the first chunk of stage j, and w_i through all chunks of
        stage i. For every stage i the iteration takes at least

            sum over j < i of c_j + m w_i + the first stage's optimizer step.

        If v chunks of p stages are equal, the first two terms are m w (1 + (p - 1) / (m v)): the
        bubble of the interleaved schedule (Narayanan et al. 2021, Section 2.2.2).

        A schedule that splits backward passes breaks the chain: its weight gradients need not
        precede the earlier stages' backward passes. Without a proof for the schedule, only the
        kernels of the busiest stage count, which no order avoids.
        """
        key = scenario.parallelism, scenario.batch, scenario.recompute, scenario.memory
        if not scenario.schedule_family.has_proved_bound:
            return _ROUNDING * self._busy_s(scenario)
        passes_s = self._pipelines.get(key)
        if passes_s is None:
            passes_s = self._pipelines[key] = self._pipeline_s(scenario)
        return _ROUNDING * (passes_s + self._rank(scenario).step_s)

    def iteration_s(self, scenario: Scenario) -> float:
        """Close lower bound of the iteration time: see `iteration_bound_s`.

        It times the scenario's passes. The quick bound is returned with `recompute: auto`, because
        the passes depend on the chosen policy, and for a schedule without a proved bound.
        """
        ops_s = self.ops_s(scenario)
        if is_open(scenario) or not scenario.schedule_family.has_proved_bound:
            return ops_s
        plan = Plan.of(scenario, self._domains)
        return max(ops_s, _ROUNDING * iteration_bound_s(plan, self.machine))

    @property
    def _domains(self) -> Domains:
        return self.machine.model.profile.cluster.domains

    def _rank(self, scenario: Scenario) -> _Rank:
        """Values that depend on the stages' parameters, and so only on the split."""
        key = scenario.parallelism, scenario.memory, scenario.reduces_every_microbatch
        found = self._ranks.get(key)
        if found is None:
            mesh = self._mesh(scenario)
            cut = cut_into_chunks(self._model_of(scenario), scenario.chunk_contents)
            microbatch, options = microbatch_of(scenario, mesh), StepOptions.of(scenario, mesh)
            held = [*dict.fromkeys(stage_parameters(cut, mesh.pp, microbatch))]
            states = [
                model_states(options, one.total, one.experts, one.in_fp8).total_bytes
                for one in held
            ]
            step_s = math.fsum(self.machine.step_seconds(options, held[0]).values())
            found = self._ranks[key] = _Rank((max(states), states[0]), step_s)
        return found

    def _pipeline_s(self, scenario: Scenario) -> float:
        chunks = self._stage_chunks(scenario)
        policy, options = _certain_recompute(scenario.recompute), self._options(scenario)
        both_s = [self._both_passes_s(chunk, policy, options) for chunk in chunks.different]
        return max(
            sum(number * both_s[chunk] for chunk, number in passed)
            + scenario.num_microbatches * sum(number * both_s[chunk] for chunk, number in own)
            for passed, own in chunks.stages
        )

    def _busy_s(self, scenario: Scenario) -> float:
        """Time of the kernels of all passes of the busiest stage."""
        chunks, both = self._stage_chunks(scenario), self._pass_bounds.kernels_s
        policy, options = _certain_recompute(scenario.recompute), self._options(scenario)
        kernels_s = [both(chunk, policy, options) for chunk in chunks.different]
        return scenario.num_microbatches * max(
            sum(number * kernels_s[chunk] for chunk, number in own) for _, own in chunks.stages
        )

    def _options(self, scenario: Scenario) -> PassOptions:
        """Options of the passes, without collectives of ZeRO that only some passes run."""
        _, overlap, batch = self._layer_of(scenario)
        shards = scenario.memory.zero_stage >= 2 and scenario.reduces_every_microbatch
        sharding = sharding_of(scenario, self._mesh(scenario)) if shards else None
        launch_s = 0.0 if scenario.facts.cuda_graphs else scenario.host_issue_s
        return shared(PassOptions(batch, overlap, sharding, launch_s))

    def _stage_chunks(self, scenario: Scenario) -> _StageChunks:
        split = scenario.parallelism
        found = self._chains.get(split)
        if found is None:
            get_batch = GetBatch(causal_mask=scenario.attention_backend == "unfused")
            cut = cut_into_chunks(self._model_of(scenario), scenario.chunk_contents, get_batch)
            found = self._chains[split] = _StageChunks.of(cut, split.pipeline)
        return found


@dataclass(frozen=True, slots=True)
class _StageChunks:
    """The different chunks of a pipeline, and how many of each its stages have.

    Args:
        different: the different chunks.
        stages: for each stage, pairs of a place in `different` and a number: for the first chunks
            of all earlier stages, and for its own chunks. Of consecutive stages with equal chunks
            only the last one is here, because it has the most earlier stages.
    """

    different: tuple[Chunk, ...]
    stages: tuple[tuple[_Numbers, _Numbers], ...]

    @classmethod
    def of(cls, cut: ModelChunks, num_stages: int) -> _StageChunks:
        """Count the chunks of a model that is cut for this number of stages."""
        stages: list[tuple[_Numbers, _Numbers]] = []
        passed: Counter[int] = Counter()
        for stage in range(num_stages):
            own = (*Counter(cut.numbers[stage::num_stages]).items(),)
            if stages and stages[-1][1] == own:
                stages.pop()
            stages.append(((*passed.items(),), own))
            passed[cut.numbers[stage]] += 1
        return cls(cut.different, tuple(stages))


_Numbers = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Rank:
    """Model states and optimizer step.

    Args:
        states_bytes: model states of the fullest and of the first stage.
        step_s: time of the first stage's optimizer step.
    """

    states_bytes: tuple[int, int]
    step_s: float


def _layers(model: Chunk) -> list[Block]:
    """The different layers; every layer of the model takes at least the minimum of them."""
    return [*dict.fromkeys(block for block, _ in model.runs if block.is_unit)]


def _certain_recompute(policy: RecomputePolicy) -> RecomputePolicy:
    """What every layer of every microbatch recomputes at least, in units of one layer."""
    for_all = policy.method == "uniform" and policy.keep_microbatches == 0
    if not for_all or policy.strategy == "auto":
        return SAVE_ALL
    return shared(policy.model_copy(update={"num_layers": 1, "distribute": False}))
