"""Rules of merged passes (overlap.merged_passes).

Source: Megatron-LM's `TransformerConfig.__post_init__` for overlap_moe_expert_parallel_comm and
delay_wgrad_compute.
"""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.scenario.allowed_values import any_but, one_of
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, Rule, rule_against
from simtrain.schedules.registry import NAMED, default_name

_MERGING = [name for name, family in NAMED.items() if family.can_merge]
_EXPERTS = "experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}"
_OVERLAPPING = [name for name, other in DISPATCHERS.items() if other.overlaps_compute]
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


def _near_batches(scenario: Scenario) -> Iterator[int]:
    split, unit = scenario.parallelism, scenario.batch.micro * scenario.parallelism.data
    number = scenario.batch.global_ / unit
    near = scenario.schedule_family.near_microbatches
    yield from (legal * unit for legal in near(split.pipeline, scenario.num_chunks, number))


def _cuts_merged_passes(scenario: Scenario) -> bool:
    schedule = scenario.schedule_file
    if schedule is None or not (scenario.reduces_in_buckets or scenario.overlaps_parameter_gather):
        return False
    return schedule.merges_ends


MERGED_PASS_RULES: list[Rule] = [
    Excludes(
        "E431",
        "overlap.merged_passes",
        "the schedule cannot merge passes of these stages",
        _cannot_merge,
        reads=("schedule", "parallelism.pipeline"),
        near={"schedule": _MERGING, "parallelism.pipeline": [1]},
        why=(
            "Megatron-LM merges passes of interleaved stages, and without a pipeline; a schedule "
            "from a file says itself which passes it merges"
        ),
        example=(
            "model: {num_layers: 8, biases: false, "
            f"{_EXPERTS}}}\n"
            "parallelism: {pipeline: 2, data: 4, expert: 4}\n"
            "overlap: {merged_passes: true}"
        ),
    ),
    Excludes(
        "E432",
        "overlap.merged_passes",
        "the ranks exchange no tokens that it could hide",
        _without_exchanges,
        reads=("parallelism.expert", "parallelism.expert_dispatch", "overlap.shared_expert"),
        near={
            "overlap.shared_expert": [False],
            "parallelism.expert_dispatch": _OVERLAPPING,
        },
        why="merged passes hide the exchanges of tokens, which no shared expert may hide already",
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
    Excludes(
        "E434",
        "overlap.merged_passes",
        "the model predicts several tokens, or one without a pipeline",
        lambda scenario: scenario.model.mtp_num_layers > (scenario.parallelism.pipeline > 1),
        reads=("model.mtp_num_layers", "parallelism.pipeline"),
        near={"model.mtp_num_layers": [0, 1]},
        why=(
            "Megatron-LM merges passes with at most one layer of token prediction, and with one "
            "only in a pipeline"
        ),
        example=(
            "model: {position_embedding: rope, mtp_num_layers: 1, biases: false, "
            f"{_EXPERTS}}}\n"
            "parallelism: {data: 4, expert: 4}\noverlap: {merged_passes: true}"
        ),
    ),
    Excludes(
        "E435",
        "memory.zero_stage",
        "passes are merged",
        lambda scenario: scenario.merges_passes,
        reads=("overlap.merged_passes", "schedule"),
        off=(1, 0),
        near={"overlap.merged_passes": [False]},
        why=(
            "simtrain does not simulate ZeRO stages 2 and 3 with merged passes, which gather the "
            "parameters of two chunks at a time"
        ),
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
        what=(
            "DualPipe or DualPipeV has too few microbatches, or a schedule of two directions has "
            "no halves of them."
        ),
        fix=(
            "Use 2 microbatches per stage and replica or more; for dualpipe and chimera, even "
            "numbers of microbatches and stages."
        ),
        example="parallelism: {pipeline: 16}\nschedule: dualpipe",
    ),
    Excludes(
        "E439",
        "memory.shard_over",
        "the schedule has two copies of the model in a pipeline",
        lambda scenario: scenario.model_copies > 1,
        reads=("schedule",),
        off=one_of(None, near=(LEFT_OUT,)),
        near={"schedule": ["1f1b"]},
        why="simtrain shards states over the replicas of both copies of the model",
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
    Excludes(
        "E437",
        "overlap.delayed_weight_gradients",
        "no passes are merged",
        lambda scenario: not scenario.merges_passes,
        reads=("overlap.merged_passes", "schedule"),
        near={"overlap.merged_passes": [True]},
        why="weight gradients are delayed behind the exchanges of merged passes",
        example="overlap: {delayed_weight_gradients: true}",
    ),
]
