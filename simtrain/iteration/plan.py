"""The plan of an iteration: its passes, optimizer steps and schedule, without durations.

A model is a list of blocks. Each virtual stage runs a chunk of it, preceded by loading a
microbatch. An action of the schedule runs a pass of a chunk.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simtrain.base.mesh import Axis, Domains, Mesh
from simtrain.base.values import dataclass, replace
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.parallelism import ChunkContents
from simtrain.scenario.schema import program_reader
from simtrain.schedules import KINDS, Kind, Order, Schedule, save_all_actions
from simtrain.workload.chunk import Chunk, Parameters, chunk_of, whole_parameters
from simtrain.workload.gpt import check_own_layers, gpt_blocks
from simtrain.workload.hashing import shared
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.model_ends import GetBatch, ModelChunks, cut_into_chunks
from simtrain.workload.ops import Op, collective
from simtrain.workload.optimizer import (
    GradientBuckets,
    StepOps,
    StepOptions,
    bucket_ops,
    buckets_of,
    step_ops,
)
from simtrain.workload.passes import MergedPass, Pass, PassKind, PassOptions, RankPass
from simtrain.workload.recompute import SAVE_ALL
from simtrain.workload.recorded_step import RecordedStep
from simtrain.workload.segments import check_saved_ops
from simtrain.workload.sharding import sharding_of
from simtrain.workload.tape import Block, Context, ExpertGroups, Microbatch, record
from simtrain.workload.work import CollectiveKind

# The order of a pipeline's actions, with the passes that they run.


@dataclass(frozen=True, slots=True)
class PassOrder:
    """The order of each stage's actions, and the passes that they run.

    Args:
        order: the order of the actions.
        chunks: [virtual stages], the number of each one's chunk among the different ones.
        num_saving_all: [stages], number of outstanding forward passes that save everything.
    """

    order: Order
    chunks: tuple[int, ...]
    num_saving_all: tuple[int, ...]

    @property
    def actions(self) -> Schedule:
        return self.order.actions

    @property
    def num_passes(self) -> NDArray[np.int64]:
        """[different chunks, kinds, 2], the number of passes.

        Those of the third axis save what recompute leaves, or everything.
        """
        counts = np.zeros((max(self.chunks) + 1, len(KINDS), 2), np.int64)
        if not any(self.num_saving_all):
            np.add.at(counts[:, :, 0], np.array(self.chunks), self.order.num_actions)
            return counts
        actions, chunks = self.actions, np.array(self.chunks)
        saves_all = self.saves_all.astype(np.int64)
        columns = chunks[actions.virtual_stage], actions.kind, saves_all
        places = np.ravel_multi_index(columns, counts.shape)
        return np.bincount(places, minlength=counts.size).reshape(counts.shape)

    @property
    def saves_all(self) -> NDArray[np.bool_]:
        """[actions], whether each action's microbatch saves everything on its chunk."""
        return save_all_actions(self.actions, self.num_saving_all)


class PassVariant(NamedTuple):
    """What tells a pass of a plan from its other passes.

    Args:
        chunk: number of the chunk among the different ones.
        kind: F, B, I, W; or R: the reduction of the chunk's gradients after all passes.
        saves_all: it recomputes nothing.
        skips_sync: it skips communication with other replicas (`sync_skip_rule`).
        beside: the backward pass that runs merged with this forward pass; None for none.
    """

    chunk: int
    kind: PassKind
    saves_all: bool = False
    skips_sync: bool = False
    beside: PassVariant | None = None


@dataclass(frozen=True)
class Plan:
    """An iteration of a scenario on a mesh.

    Args:
        scenario: its recompute strategy and `keep_microbatches` are not "auto".
        mesh: the mesh of ranks.
        model: all blocks of the model.
        num_saved_per_stage: [stages], number of outstanding forward passes that save everything;
            None for the scenario's `keep_microbatches` on all stages.
        recorded: the scenario's recorded program; None if it has a model.
    """

    scenario: Scenario
    mesh: Mesh
    model: Chunk
    num_saved_per_stage: tuple[int, ...] | None = None
    recorded: RecordedStep | None = None

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        domains: Domains,
        num_saved_per_stage: tuple[int, ...] | None = None,
        layers: Sequence[Block] | None = None,
    ) -> Plan:
        """Build the plan of a scenario.

        Args:
            scenario: the scenario.
            domains: of the machine (`Cluster.domains`).
            num_saved_per_stage: as in `Plan`.
            layers: replace the layers of the scenario's model.

        Raises:
            InputError: `layers` cannot replace the layers of the model (E505).
        """
        if scenario.program_file is not None:
            return cls._of_program(scenario, domains)
        mesh, model = scenario.mesh(domains), gpt_blocks(scenario)
        if layers is not None:
            check_own_layers(layers, scenario.model.num_layers, microbatch_of(scenario, mesh))
            ends = (block for block in model.blocks if not block.is_unit)
            model = chunk_of([next(ends), *layers, *ends])
        if scenario.recompute.strategy == "ops":
            batch = microbatch_of(scenario, mesh)
            units = (record(block, batch) for block, _ in model.runs if block.is_unit)
            check_saved_ops(units, scenario.recompute.saved_ops)
        return cls(scenario, mesh, model, num_saved_per_stage)

    @classmethod
    def _of_program(cls, scenario: Scenario, domains: Domains) -> Plan:
        assert scenario.program and scenario.program_file, "the scenario has a model"
        of_cluster = domains, scenario.facts.kernels
        step = program_reader(scenario.program).step(scenario.program_file, *of_cluster)
        assert isinstance(step, RecordedStep), "readers of programs return recorded steps"
        return cls(scenario, scenario.mesh(domains), Chunk(((step.model, 1),)), recorded=step)

    def __repr__(self) -> str:
        name, mesh = self.scenario.name or "unnamed", self.mesh
        return f"<Plan of {name}: tp {mesh.tp}, dp {mesh.dp}, pp {mesh.pp}, {self.schedule!r}>"

    @cached_property
    def options(self) -> PassOptions:
        scenario, mesh = self.scenario, self.mesh
        sharding = sharding_of(scenario, mesh) if scenario.memory.zero_stage >= 2 else None
        facts = scenario.facts
        launch_s, call_s = scenario.host_issue_s, facts.host_call
        if facts.cuda_graphs:
            launch_s = call_s = 0.0
        # Blocking exchanges, and those of shapes, synchronize the host.
        posts = scenario.overlaps_pipeline and not self.contents.separates_loss
        blocks = facts.blocking_launches and not facts.cuda_graphs
        runs_ahead = not blocks and (mesh.pp == 1 or posts)
        batch, overlap = microbatch_of(scenario, mesh), overlap_of(scenario)
        host = launch_s, call_s, runs_ahead, blocks
        return shared(PassOptions(batch, overlap, sharding, *host, recorded=self.recorded))

    @property
    def microbatch(self) -> Microbatch:
        return self.options.microbatch

    @cached_property
    def model_chunks(self) -> ModelChunks:
        if self.recorded:
            return ModelChunks((self.model,), (0,))
        get_batch = GetBatch(causal_mask=self.scenario.attention_backend == "unfused")
        return cut_into_chunks(self.model, self.contents, get_batch, self.scenario.model_copies)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        different = self.model_chunks.different
        return tuple(different[number] for number in self.model_chunks.numbers)

    @cached_property
    def stage_parameters(self) -> tuple[Parameters, ...]:
        virtual_stages = self.scenario.stage_placement.virtual_stages
        return self.model_chunks.parameters(virtual_stages, self.microbatch)

    @property
    def num_parameters(self) -> int:
        return self._whole_parameters.total

    @property
    def _whole_parameters(self) -> Parameters:
        return whole_parameters(self.model, self.microbatch)

    @property
    def num_trained_parameters(self) -> int:
        return whole_parameters(self.model, self.microbatch).trained.total

    @property
    def num_active_parameters(self) -> int:
        whole, experts = self._whole_parameters, self.scenario.model.experts
        of_experts = whole.frozen.experts if whole.frozen else whole.experts  # adapters never idle
        idle = of_experts * (experts.num - experts.top_k) // experts.num if experts else 0
        return whole.total - idle

    @cached_property
    def step_options(self) -> StepOptions:
        return StepOptions.of(self.scenario, self.mesh, self.recorded)

    @cached_property
    def step_parameters(self) -> tuple[Parameters, ...]:
        """The parameters of the different optimizer steps."""
        objects = {id(each): each for each in self.stage_parameters}  # few: each is hashed once
        return tuple(dict.fromkeys(objects.values()))

    @cached_property
    def steps(self) -> tuple[StepOps, ...]:
        return tuple(step_ops(self.step_options, each) for each in self.step_parameters)

    @cached_property
    def order(self) -> Order:
        return self.scenario.order

    @cached_property
    def pass_order(self) -> PassOrder:
        """The order of each stage's actions, with the passes that they run."""
        num_saving_all = self.num_saved_per_stage
        if num_saving_all is None:
            number = self.scenario.recompute.keep_microbatches
            assert isinstance(number, int), "keep_microbatches is chosen before a plan is made"
            num_saving_all = (number,) * self.order.num_stages
        return PassOrder(self.order, self.model_chunks.numbers, num_saving_all)

    @property
    def schedule(self) -> Schedule:
        return self.order.actions

    @property
    def has_buckets(self) -> bool:
        return self.step_options.reduces_during_backward

    @cached_property
    def buckets(self) -> tuple[GradientBuckets, ...]:
        rule = self.scenario.overlap.gradient_buckets
        return buckets_of(self.model_chunks.different, self.microbatch, rule, self.mesh.dp)

    @cached_property
    def contents(self) -> ChunkContents:
        return self.scenario.chunk_contents

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends of a hidden state: all, or 1/t if divided."""
        split = self.scenario.parallelism
        divided = split.sequence_parallel or split.scatter_gather
        ranks = self.microbatch.tensor.num_ranks if divided else 1
        return self.microbatch.activation_bytes / ranks

    @cached_property
    def receive_gather(self) -> Op | None:
        """The all-gather of a scattered hidden state (scatter_gather); None without."""
        batch = self.microbatch
        if not self.scenario.parallelism.scatter_gather or batch.tensor.num_ranks == 1:
            return None
        work = CollectiveKind.ALL_GATHER, batch.activation_bytes, batch.tensor
        return collective("gather on receive", *work)

    def bucket_ops(
        self, chunk: int, bucket: int, of_stage: Parameters | None, *, gathers: bool = False
    ) -> tuple[Op, ...]:
        """Return `buckets.bucket_ops` for a chunk, by its number among the different ones."""
        return bucket_ops(self.step_options, self.buckets[chunk], bucket, of_stage, gathers=gathers)

    def chunk_pass(self, chunk: Chunk, kind: PassKind, saves_all: bool) -> Pass:
        """Return a pass of a chunk, with the scenario's recompute or none."""
        return _pass(chunk, kind, SAVE_ALL if saves_all else self._recompute, self.options)

    @cached_property
    def _recompute(self) -> RecomputePolicy:
        return shared(self.scenario.recompute)

    def layers_pass(self, num_layers: int, kind: Kind) -> Pass:
        """Return a pass of `num_layers` copies of the first layer, without embedding and head."""
        layer = next(block for block in self.model.blocks if block.is_unit)
        return Pass(Chunk(((layer, num_layers),)), kind, self.scenario.recompute, self.options)

    @cached_property
    def variants(self) -> dict[PassVariant, RankPass]:
        """All different passes that the actions of the schedule run, and reductions after them."""
        return {**self.passes, **self._quiet_passes, **self.reductions, **self._merged_passes}

    @cached_property
    def passes(self) -> dict[PassVariant, Pass]:
        """The different passes of one microbatch with all their communication."""
        chunks = self.model_chunks.different
        return {each: self.chunk_pass(chunks[each.chunk], *each[1:3]) for each in self.num_passes}

    def different_passes(self) -> Iterator[tuple[Pass, int]]:
        """Yield the different passes of one microbatch, and the number of each."""
        for variant, pass_ in self.passes.items():
            yield pass_, self.num_passes[variant]

    @property
    def _merged_passes(self) -> dict[PassVariant, MergedPass]:
        if not self.order.merges_passes:
            return {}
        schedule, numbers = self.schedule, np.array(self.model_chunks.numbers)
        saves_all = self.pass_order.saves_all.astype(int)
        columns = numbers[schedule.virtual_stage], schedule.kind, saves_all
        first = np.flatnonzero(schedule.follows_merged) - 1
        # Each pair as one number, which sorts in the order of the columns.
        shape = 2 * (len(self.model_chunks.different), len(KINDS), 2)
        of_pairs = [column[first + i] for i in (0, 1) for column in columns]
        different = np.unique(np.ravel_multi_index(of_pairs, shape))
        pairs = np.stack(np.unravel_index(different, shape))
        merged, delays = {}, self.scenario.delays_weight_gradients
        for pair in pairs.T.tolist():
            forward, backward = (
                PassVariant(chunk, KINDS[kind], bool(saves_all))
                for chunk, kind, saves_all in (pair[:3], pair[3:])
            )
            passes = self.passes[forward], self.passes[backward]
            merged[forward._replace(beside=backward)] = MergedPass(*passes, delays)
        return merged

    @property
    def _quiet_passes(self) -> dict[PassVariant, Pass]:
        """The passes that skip communication with other replicas.

        Without a pipeline they are backward passes that reduce no gradients. In a pipeline,
        parameters are gathered already, and reductions follow all passes.
        """
        sharding, in_pipeline = self.options.sharding, self.mesh.pp > 1
        if not sharding or sharding.accumulates:
            return {}
        less = None if in_pipeline else replace(sharding, reduces=False)
        options = shared(replace(self.options, sharding=less))
        return {
            each._replace(skips_sync=True): replace(pass_, options=options)
            for each, pass_ in self.passes.items()
            if in_pipeline or each.kind == "B"
        }

    @cached_property
    def reductions(self) -> dict[PassVariant, Pass]:
        """The reductions of whole different chunks of a sharded pipeline, after all passes."""
        sharding = self.options.sharding
        if sharding is None or self.mesh.pp == 1:
            return {}
        options = shared(replace(self.options, sharding=replace(sharding, reduces=True)))
        return {
            PassVariant(number, "R"): _pass(chunk, "R", SAVE_ALL, options)
            for number, chunk in enumerate(self.model_chunks.different)
        }

    @cached_property
    def num_passes(self) -> Counter[PassVariant]:
        """The number of passes of each kind and chunk, with and without recompute."""
        numbers, kinds = self.model_chunks.numbers, self.order.kinds
        if len(kinds) > 2:
            counts = self.pass_order.num_passes
            places = np.argwhere(counts).tolist()  # in order
            variants = [PassVariant(each[0], KINDS[each[1]], bool(each[2])) for each in places]
            return Counter(dict(zip(variants, counts[counts > 0].tolist(), strict=True)))
        microbatches = self.scenario.num_microbatches // self.order.placement.copies
        # Most plans keep none, and need not build their schedule here.
        keeps = any(self.pass_order.num_saving_all)
        keeping = self.pass_order.num_passes[:, 0, 1].tolist() if keeps else [0] * len(numbers)
        passes: Counter[PassVariant] = Counter()
        for number, chunks in Counter(numbers).items():
            for kind in kinds:
                passes[PassVariant(number, kind, saves_all=True)] = keeping[number]
            for kind in kinds:
                passes[PassVariant(number, kind)] = chunks * microbatches - keeping[number]
        return +passes


def microbatch_of(scenario: Scenario, mesh: Mesh) -> Microbatch:
    """Return the hidden states of a scenario's microbatch on one rank of the mesh."""
    return _microbatch(
        scenario.model.seq_length // mesh.cp,
        scenario.batch.micro,
        scenario.model.hidden_size,
        mesh.group("tp"),
        scenario.parallelism.sequence_parallel,
        scenario.precision.compute_bytes,
        scenario.gradient_bytes,
        Context.of(scenario.parallelism, mesh),
        kernels=scenario.facts.kernels,
        dtype=scenario.precision.product_type,
        fp8_recipe=scenario.fp8_recipe,
        fp8_weights=scenario.fp8_weights,
        experts=ExpertGroups.of(scenario.expert_mesh(mesh)),
        adds_gradients=not (scenario.fully_shards and scenario.reduces_every_microbatch),
        userbuffers=scenario.overlap.userbuffers,
        is_frozen=scenario.model.lora is not None,
        saved_in_16_bits=scenario.regions_saved_in_16_bits,
        fp8_activation_inputs=scenario.precision.fp8_activation_inputs,
        attention_output_bits=scenario.precision.attention_output_bits,
        documents=scenario.documents,
        graph_modules=frozenset(scenario.facts.cuda_graph_modules),
    )


def overlap_of(scenario: Scenario) -> OverlapPolicy:
    """Return the overlap policy of a scenario."""
    axes: dict[Axis, bool] = {
        "tp": scenario.overlaps_tensor_parallel,
        "cp": True,
        "dp": scenario.overlaps_data_parallel,
        "ep": scenario.overlap.shared_expert,
    }
    copies = scenario.facts.copies_sequences and scenario.batch.micro > 1
    return OverlapPolicy(frozenset(filter(axes.get, axes)), scenario.overlap.userbuffers, copies)


# Equal microbatches and passes share one object, which caches find by identity.
_microbatch = functools.lru_cache(maxsize=8192)(Microbatch)
_pass = functools.lru_cache(maxsize=8192)(Pass)
