"""Rules of merged passes (overlap.merged_passes).

Source: Megatron-LM's `TransformerConfig.__post_init__` for overlap_moe_expert_parallel_comm and
delay_wgrad_compute.
"""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.scenario.allowed_values import any_but
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, rule_against
from simtrain.schedules.registry import NAMED, default_name

_MERGING = [name for name, family in NAMED.items() if family.can_merge]
_EXPERTS = "experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}"
_OVERLAPPING = [name for name, other in DISPATCHERS.items() if other.overlaps_compute]
_TOY = f"model: {{biases: false, {_EXPERTS}}}\nparallelism: {{data: 4, expert: 4}}\n"


def _cannot_merge(scenario: Scenario) -> bool:
    family, split = scenario.schedule_family, scenario.parallelism
    is_possible = family.can_merge and (family.has_chunks or split.pipeline == 1)
    return scenario.overlap.merged_passes and (
        scenario.schedule_file is not None or not is_possible
    )


def _without_exchanges(scenario: Scenario) -> bool:
    split = scenario.parallelism
    has_exchanges = split.expert > 1 and DISPATCHERS[split.expert_dispatch].overlaps_compute
    return scenario.overlap.merged_passes and not (
        scenario.model.experts and has_exchanges and not scenario.overlap.shared_expert
    )


def _uneven_groups(scenario: Scenario) -> str:
    family, split = scenario.schedule_family, scenario.parallelism
    in_groups = family.chooses_groups or not family.merges  # E311
    if scenario.schedule_file or in_groups or not family.allows_chunks(split.interleave):
        return ""
    return family.uneven_groups(split.pipeline, split.interleave, scenario.num_microbatches)


def _near_batches(scenario: Scenario) -> Iterator[int]:
    split, unit = scenario.parallelism, scenario.batch.micro * scenario.parallelism.data
    number = scenario.batch.global_ / unit
    near = scenario.schedule_family.near_microbatches
    yield from (legal * unit for legal in near(split.pipeline, scenario.num_chunks, number))


def _cuts_merged_passes(scenario: Scenario) -> bool:
    schedule = scenario.schedule_file
    if schedule is None or not (scenario.reduces_in_buckets or scenario.overlap.parameter_gather):
        return False
    return schedule.merges_ends


MERGED_PASS_RULES = [
    rule_against(
        "E431",
        "Megatron-LM merges passes of interleaved stages, and without a pipeline; a schedule from "
        "a file says itself which passes it merges",
        {
            "overlap.merged_passes": [False],
            "schedule": _MERGING,
            "parallelism.pipeline": [1],
        },
        _cannot_merge,
        "overlap.merged_passes is true, but schedule {scenario.schedule} cannot merge passes of "
        "{scenario.parallelism.pipeline} stages",
        ("overlap.merged_passes", "schedule"),
        what="Passes are to be merged, but the schedule has no such order.",
        fix="Remove overlap.merged_passes, use the interleaved schedule, or no pipeline.",
        example=(
            "model: {num_layers: 8, biases: false, "
            f"{_EXPERTS}}}\n"
            "parallelism: {pipeline: 2, data: 4, expert: 4}\n"
            "overlap: {merged_passes: true}"
        ),
    ),
    rule_against(
        "E432",
        "merged passes hide the exchanges of tokens, which no shared expert may hide already",
        {
            "overlap.merged_passes": [False],
            "overlap.shared_expert": [False],
            "parallelism.expert_dispatch": _OVERLAPPING,
        },
        _without_exchanges,
        "overlap.merged_passes is true, but the ranks exchange no tokens that it could hide",
        ("overlap.merged_passes",),
        what="Passes are to be merged, but there is no exposed exchange of tokens with experts.",
        fix=(
            "Remove overlap.merged_passes, or use experts with parallelism.expert above 1, "
            "another parallelism.expert_dispatch than all_gather, and overlap.shared_expert false."
        ),
        example="overlap: {merged_passes: true}",
    ),
    Requires(
        "E433",
        "overlap.merged_passes",
        needs={
            "recompute.strategy": any_but("full", near=("none", "selective")),
            "recompute.keep_microbatches": 0,
        },
        why=(
            "Megatron-LM merges passes without full recompute, and recomputes in all microbatches"
        ),
        example=_TOY + "recompute: {strategy: full}\noverlap: {merged_passes: true}",
    ),
    rule_against(
        "E434",
        "Megatron-LM merges passes with at most one layer of token prediction, and with one only "
        "in a pipeline",
        {"overlap.merged_passes": [False], "model.mtp_num_layers": [0, 1]},
        lambda scenario: (
            scenario.overlap.merged_passes
            and scenario.model.mtp_num_layers > (scenario.parallelism.pipeline > 1)
        ),
        "overlap.merged_passes is true, but model.mtp_num_layers is "
        "{scenario.model.mtp_num_layers} on {scenario.parallelism.pipeline} stages",
        what="Passes are to be merged, but the model predicts several tokens.",
        fix="Remove overlap.merged_passes or model.mtp_num_layers.",
        example=(
            "model: {position_embedding: rope, mtp_num_layers: 1, biases: false, "
            f"{_EXPERTS}}}\n"
            "parallelism: {data: 4, expert: 4}\noverlap: {merged_passes: true}"
        ),
    ),
    rule_against(
        "E435",
        "simtrain does not simulate ZeRO stages 2 and 3 with merged passes, which gather the "
        "parameters of two chunks at a time",
        {"memory.zero_stage": [1, 0], "overlap.merged_passes": [False]},
        lambda scenario: scenario.memory.zero_stage > 1 and scenario.merges_passes,
        "memory.zero_stage is {scenario.memory.zero_stage}, but passes are merged",
        what="Merged passes are combined with ZeRO stage 2 or 3.",
        fix="Set memory.zero_stage to 1 or 0, or merge no passes.",
        example=_TOY + "memory: {zero_stage: 2}\noverlap: {merged_passes: true}",
    ),
    rule_against(
        "E438",
        "DualPipe's lanes are full when the first microbatch returns, and two directions need "
        "halves of stages and microbatches",
        {
            "batch.global": _near_batches,
            "parallelism.pipeline": lambda scenario: near_divisors(
                scenario.parallelism.pipeline, scenario.num_microbatches
            ),
            "schedule": lambda scenario: [default_name(scenario.num_chunks)],
        },
        lambda scenario: scenario.num_microbatches and _uneven_groups(scenario),
        "schedule {scenario.schedule} cannot run {scenario.num_microbatches} microbatches on "
        "{scenario.parallelism.pipeline} stages",
        ("batch.global", "parallelism.pipeline", "schedule"),
        what="DualPipe or DualPipeV has too few microbatches, or no halves of them.",
        fix=(
            "Use 2 microbatches per stage and replica or more; for dualpipe, even numbers of "
            "microbatches and stages."
        ),
        example="parallelism: {pipeline: 16}\nschedule: dualpipe",
    ),
    rule_against(
        "E439",
        "simtrain shards states over the replicas of both copies of the model",
        {"memory.shard_over": [LEFT_OUT], "schedule": ["1f1b"]},
        lambda scenario: scenario.memory.shard_over and scenario.model_copies > 1,
        "memory.shard_over is set while schedule is {scenario.schedule}, which has two copies of "
        "the model in a pipeline",
        ("memory.shard_over", "schedule"),
        what="memory.shard_over is combined with a schedule of two directions.",
        fix="Remove memory.shard_over, or use another schedule.",
        example=(
            "parallelism: {pipeline: 2, data: 4}\nschedule: dualpipe\n"
            "memory: {zero_stage: 1, shard_over: 2}"
        ),
    ),
    rule_against(
        "E436",
        "buckets cut a chunk's last backward pass and first forward pass into spans, and a merged "
        "pass cannot be cut",
        {
            "overlap.data_parallel": [False],
            "overlap.parameter_gather": [False],
            "schedule": [*NAMED],
        },
        _cuts_merged_passes,
        "{scenario.schedule} merges the last backward pass or the first forward pass of a chunk, "
        "which gradients or parameters overlap",
        ("schedule",),
        what="A schedule from a file merges a pass that buckets of gradients or parameters cut.",
        fix="Write these two passes in cells of their own, or set overlap.data_parallel to false.",
        example="A file with (0F1;0B0)OVERLAP_F_B for the first F of a chunk, and data_parallel.",
    ),
    rule_against(
        "E437",
        "weight gradients are delayed behind the exchanges of merged passes",
        {"overlap.delayed_weight_gradients": [False], "overlap.merged_passes": [True]},
        lambda scenario: scenario.overlap.delayed_weight_gradients and not scenario.merges_passes,
        "overlap.delayed_weight_gradients is true, but no passes are merged",
        what="Weight gradients are to be delayed, but no passes are merged.",
        fix="Remove overlap.delayed_weight_gradients, or set overlap.merged_passes to true.",
        example="overlap: {delayed_weight_gradients: true}",
    ),
]
