"""Rules of merged passes (overlap.merged_passes).

Source: Megatron-LM's `TransformerConfig.__post_init__` for overlap_moe_expert_parallel_comm and
delay_wgrad_compute.
"""

from __future__ import annotations

from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.rule import Rules, against, any_but, at_least, excludes, requires
from simtrain.scenario.schema import Scenario

_EXPERTS = "experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}"
_TOY = f"model: {{biases: false, {_EXPERTS}}}\nparallelism: {{data: 4, expert: 4}}\n"


def _cannot_merge(scenario: Scenario) -> bool:
    family, split = scenario.schedule_family, scenario.parallelism
    is_possible = family.can_merge and (family.has_chunks or split.pipeline == 1)
    return scenario.schedule_file is not None or not is_possible


def _without_exchanges(scenario: Scenario) -> bool:
    split = scenario.parallelism
    has_exchanges = split.expert > 1 and DISPATCHERS[scenario.expert_dispatch].overlaps_compute
    return not (scenario.model.experts and has_exchanges and not scenario.overlap.shared_expert)


def runs_two_lanes(scenario: Scenario) -> bool:
    """Whether two lanes of microbatches fill each other's gaps, so that their numbers must fit."""
    family = scenario.schedule_family
    return scenario.model_copies > 1 or (family.merges and not family.chooses_groups)


def _uneven_groups(scenario: Scenario) -> str:
    family, split = scenario.schedule_family, scenario.parallelism
    in_groups = not runs_two_lanes(scenario)  # E311
    if scenario.schedule_file or in_groups or not family.allows_chunks(split.interleave):
        return ""
    return family.uneven_groups(split.pipeline, split.interleave, scenario.num_microbatches)


def _cuts_merged_passes(scenario: Scenario) -> bool:
    schedule = scenario.schedule_file
    if schedule is None or not (scenario.reduces_in_buckets or scenario.overlaps_parameter_gather):
        return False
    return schedule.merges_ends


MERGED_PASS_RULES = Rules()
MERGED_PASS_RULES += [
    excludes(
        "E431",
        "overlap.merged_passes",
        "the schedule cannot merge passes of these stages",
        _cannot_merge,
        reads=("schedule", "parallelism.pipeline"),
        why="Megatron-LM merges passes of interleaved stages, and without a pipeline; a schedule "
        "from a file says itself which passes it merges",
        example="model: {num_layers: 8, biases: false, "
        f"{_EXPERTS}}}\n"
        "parallelism: {pipeline: 2, data: 4, expert: 4}\n"
        "overlap: {merged_passes: true}",
    ),
    excludes(
        "E432",
        "overlap.merged_passes",
        "the ranks exchange no tokens that it could hide",
        _without_exchanges,
        reads=("parallelism.expert", "parallelism.expert_dispatch", "overlap.shared_expert"),
        why="merged passes hide the exchanges of tokens, which no shared expert may hide already",
        example="overlap: {merged_passes: true}",
    ),
    requires(
        "E433",
        "overlap.merged_passes",
        needs={
            "recompute.strategy": any_but("full"),
            "recompute.keep_microbatches": 0,
        },
        why="Megatron-LM merges passes without full recompute, and recomputes in all microbatches",
        example=_TOY + "recompute: {strategy: full}\noverlap: {merged_passes: true}",
    ),
    excludes(
        "E434",
        "overlap.merged_passes",
        "the model predicts several tokens, or one without a pipeline",
        lambda scenario: scenario.model.mtp_num_layers > (scenario.parallelism.pipeline > 1),
        reads=("model.mtp_num_layers", "parallelism.pipeline"),
        why="Megatron-LM merges passes with at most one layer of token prediction, and with one "
        "only in a pipeline",
        example="model: {position_embedding: rope, mtp_num_layers: 1, biases: false, "
        f"{_EXPERTS}}}\n"
        "parallelism: {data: 4, expert: 4}\noverlap: {merged_passes: true}",
    ),
    excludes(
        "E435",
        "memory.zero_stage",
        "passes are merged",
        lambda scenario: scenario.merges_passes,
        reads=("overlap.merged_passes", "schedule"),
        off=(1, 0),
        why="simtrain does not simulate ZeRO stages 2 and 3 with merged passes, which gather the "
        "parameters of two chunks at a time",
        example=_TOY + "memory: {zero_stage: 2}\noverlap: {merged_passes: true}",
    ),
    against(
        "E438",
        lambda scenario: scenario.num_microbatches and _uneven_groups(scenario),
        "schedule {scenario.schedule} cannot run {scenario.num_microbatches} microbatches on "
        "{scenario.parallelism.pipeline} stages",
        why="DualPipe's lanes are full when the first microbatch returns, and two directions need "
        "halves of stages and microbatches",
        example="parallelism: {pipeline: 16}\nschedule: dualpipe",
    ),
    excludes(
        "E439",
        "memory.shard_over",
        "the schedule has two copies of the model in a pipeline",
        lambda scenario: scenario.model_copies > 1,
        reads=("schedule",),
        off=None,
        why="simtrain shards states over the replicas of both copies of the model",
        example="parallelism: {pipeline: 2, data: 4}\nschedule: dualpipe\n"
        "memory: {zero_stage: 1, shard_over: 2}",
    ),
    against(
        "E436",
        _cuts_merged_passes,
        "{scenario.schedule} merges the last backward pass or the first forward pass of a chunk, "
        "which gradients or parameters overlap",
        why="buckets cut a chunk's last backward pass and first forward pass into spans, and a "
        "merged pass cannot be cut",
        example="A file with (0F1;0B0)OVERLAP_F_B for the first F of a chunk, and data_parallel.",
        hint="write these passes in cells of their own, or set overlap.data_parallel to false",
    ),
    excludes(
        "E437",
        "overlap.delayed_weight_gradients",
        "no passes are merged",
        lambda scenario: not scenario.merges_passes,
        reads=("overlap.merged_passes", "schedule"),
        why="weight gradients are delayed behind the exchanges of merged passes",
        example="overlap: {delayed_weight_gradients: true}",
    ),
]


_DEFERRED = "overlap.deferred_output_gradients"
_DEFERRED_TOY = "parallelism: {pipeline: 4}\noverlap: {deferred_output_gradients: 2}\n"

DEFERRED_RULES = Rules()
DEFERRED_RULES += [
    requires(
        "E497",
        _DEFERRED,
        needs={
            "parallelism.pipeline": at_least(2),
            "schedule": ("1f1b", "interleaved"),
            "software.fused_gradient_accumulation": True,
        },
        why="Megatron-Core defers the weight gradients to the end of its own pipeline schedules, "
        "and adds the products to the gradient themselves",
        example="overlap: {deferred_output_gradients: 2}",
    ),
    requires(
        "E400",
        _DEFERRED,
        needs={
            "memory.zero_stage": (0, 1),
            "overlap.merged_passes": False,
            "model.lora": None,
            "model.mtp_num_layers": 0,
            "offload.unit": "none",
        },
        why="deferred weight gradients of the output layer are not simulated with sharded "
        "gradients, merged passes, adapters, token prediction or copies to "
        "the host",
        example=_DEFERRED_TOY + "model: {tied_embeddings: false, lora: {rank: 16}}",
    ),
]
