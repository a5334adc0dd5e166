"""Combinations of settings that the frameworks refuse; for the sources see `rules`."""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.scenario.allowed_values import any_but, at_least, described_by, one_of
from simtrain.scenario.data_parallel_rules import numbers_of_replicas
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.requirement import Given, Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import numbers_of_chunks, numbers_of_stages
from simtrain.scenario.violation import Rule, rule_against
from simtrain.schedules.registry import NAMED


def numbers_of_ranks(scenario: Scenario, at_least: int = 2) -> Iterable[int]:
    """Numbers of tensor-parallel ranks that divide the query groups, the nearest first."""
    groups = scenario.model.num_query_groups
    return near_divisors(scenario.parallelism.tensor, groups, at_least)


def recomputes(scenario: Scenario) -> bool:
    """Whether layers are recomputed, so that some microbatches can be exempt."""
    return scenario.recompute.strategy in ("selective", "full")


def _named(*, has_chunks: bool) -> list[str]:
    """Names of schedules that have several chunks per stage, or one."""
    return [name for name, family in NAMED.items() if family.has_chunks is has_chunks]


def _names_for(num_chunks: int) -> list[str]:
    """Names of schedules that may give each stage so many chunks."""
    return [name for name, family in NAMED.items() if family.allows_chunks(num_chunks)]


def _exact_chunks() -> list[str]:
    """Words for the schedules that allow one number of chunks above 1, or multiples of one."""
    exact = {name: family.num_chunks for name, family in NAMED.items()}
    waves = {name: family.chunks_per_wave for name, family in NAMED.items()}
    return [
        *(f"{name} needs {number}" for name, number in exact.items() if number),
        *(f"{name} needs a multiple of {number}" for name, number in waves.items() if number > 1),
    ]


def _may_overlap(scenario: Scenario) -> bool:
    """Whether the pipeline's runtime can send messages beside compute; that of files always can."""
    return scenario.schedule_file is not None or scenario.schedule_family.overlaps


_ONE_CONTEXT_RANK = Given(
    "one context-parallel rank", lambda scenario: scenario.parallelism.context == 1
)

COMBINATION_RULES: list[Rule] = [
    Requires(
        "E308",
        "parallelism.sequence_parallel",
        needs={"parallelism.tensor": at_least(2, numbers_of_ranks)},
        why=(
            "sequence parallelism shards each sequence over the tensor-parallel group, which "
            "needs at least 2 ranks"
        ),
        example="parallelism: {sequence_parallel: true}",
    ),
    Requires(
        "E309",
        "parallelism.interleave",
        needs={"parallelism.pipeline": at_least(2, numbers_of_stages)},
        off=1,
        why=(
            "interleaving alternates between the chunks of several stages; a pipeline of one "
            "stage has nothing to interleave"
        ),
        example="parallelism: {interleave: 3}",
    ),
    rule_against(
        "E310",
        "with two stages, the next and the previous stage are the same rank, and batched sends and "
        "receives to one rank are ambiguous",
        {
            "parallelism.pipeline": lambda scenario: numbers_of_stages(scenario, at_least=3),
            "overlap.pipeline": [True],
            "parallelism.interleave": [1],
        },
        lambda scenario: (
            scenario.parallelism.pipeline == 2
            and scenario.num_chunks != 1
            and not scenario.overlaps_pipeline
        ),
        "parallelism.pipeline is 2, but the interleaved schedule with blocking transfers needs "
        "more than 2 stages",
        what="The interleaved schedule runs on two stages with blocking transfers.",
        fix=(
            "Set parallelism.pipeline to 3 or more, overlap.pipeline to true, or "
            "parallelism.interleave to 1."
        ),
        example="parallelism: {pipeline: 2, interleave: 3}",
    ),
    rule_against(
        "E312",
        "; ".join(["interleaved schedules need at least 2 chunks per stage", *_exact_chunks()]),
        {
            "schedule": lambda scenario: _names_for(scenario.num_chunks),
            "parallelism.interleave": numbers_of_chunks,
        },
        lambda scenario: (
            scenario.schedule in _named(has_chunks=True)
            and not scenario.schedule_family.allows_chunks(scenario.num_chunks)
        ),
        what="The schedule needs several chunks per stage, or exactly two.",
        fix="Write schedule: 1f1b, or set parallelism.interleave to 2 or more.",
        example=("parallelism: {pipeline: 4}\nschedule: interleaved"),
    ),
    rule_against(
        "E313",
        f"{', '.join(_named(has_chunks=False))} run one chunk per stage",
        {
            "schedule": lambda scenario: _names_for(scenario.num_chunks),
            "parallelism.interleave": [1],
        },
        lambda scenario: scenario.schedule in _named(has_chunks=False) and scenario.num_chunks != 1,
        what="A schedule of one chunk per stage, such as gpipe or 1f1b, has several chunks.",
        fix="Write schedule: interleaved, or set parallelism.interleave to 1.",
        example=("parallelism: {pipeline: 4, interleave: 2}\nschedule: 1f1b"),
    ),
    Requires(
        "E314",
        "parallelism.scatter_gather",
        needs={"parallelism.sequence_parallel": False},
        off=False,
        why=(
            "with sequence parallelism, the output of a stage is already sharded over the "
            "tensor-parallel ranks"
        ),
        example="parallelism: {tensor: 8, sequence_parallel: true, scatter_gather: true}",
    ),
    rule_against(
        "E315",
        "gradients are accumulated in fp32 or in the dtype of the weights",
        {
            "precision.gradients": lambda scenario: list(
                dict.fromkeys([scenario.precision.weights, "fp32"])
            ),
            "precision.compute": [],
        },
        lambda scenario: scenario.gradient_type not in ("fp32", scenario.precision.weights),
        what="Gradients have a different 16-bit dtype than the weights.",
        fix="Set precision.gradients to fp32 or to precision.compute.",
        example="precision: {compute: bf16, gradients: fp16}",
    ),
    Excludes(
        "E316",
        "overlap.pipeline",
        "the schedule has blocking transfers",
        lambda scenario: not _may_overlap(scenario),
        reads=("schedule",),
        off=False,
        near={"parallelism.interleave": numbers_of_chunks},
        why=(
            "Megatron-LM overlaps pipeline transfers only in the interleaved schedule; the other "
            "schedules raise an error"
        ),
        example="parallelism: {pipeline: 4}\noverlap: {pipeline: true}",
    ),
    Requires(
        "E320",
        "recompute.distribute",
        needs={"parallelism.tensor": at_least(2, numbers_of_ranks)},
        why=(
            "the saved input of a recomputed unit is sharded over the tensor-parallel group, "
            "which needs at least 2 ranks"
        ),
        example="recompute: {strategy: full, distribute: true}",
    ),
    Requires(
        "E321",
        "recompute.distribute",
        needs={"parallelism.sequence_parallel": False},
        why=(
            "with sequence parallelism, the saved input of a recomputed unit is already sharded"
            " over the tensor-parallel ranks"
        ),
        example=(
            "parallelism: {tensor: 8, sequence_parallel: true}\n"
            "recompute: {strategy: full, distribute: true}"
        ),
    ),
    Requires(
        "E322",
        "recompute.keep_microbatches",
        needs={"recompute.strategy": ("selective", "full")},
        why=(
            "keep_microbatches exempts some microbatches from recompute; without recompute it "
            "has no effect"
        ),
        example="parallelism: {pipeline: 4}\nrecompute: {keep_microbatches: 2}",
    ),
    Requires(
        "E323",
        "recompute.keep_microbatches",
        needs={"parallelism.pipeline": at_least(2, numbers_of_stages)},
        why=(
            "the schedule of a single stage (forward_backward_no_pipelining) recomputes every "
            "microbatch"
        ),
        example="recompute: {strategy: full, keep_microbatches: 1}",
    ),
    Excludes(
        "E325",
        "memory.zero_stage",
        "a pipeline accumulates sharded gradients",
        lambda scenario: scenario.parallelism.pipeline != 1 and not scenario.fully_shards,
        reads=("parallelism.pipeline", "software.stack"),
        off=one_of(1, 0, near=(1, 0, 3)),
        near={"parallelism.pipeline": [1], "software.fully_shard": [True]},
        why=(
            "ZeRO stages 2 and 3 shard gradients that a pipeline still accumulates (DeepSpeed "
            "refuses it); only PyTorch's fully_shard, as stage 3, accumulates them unsharded first"
        ),
        example="parallelism: {pipeline: 4, data: 2}\nmemory: {zero_stage: 2}",
    ),
    Requires(
        "E326",
        "memory.zero_stage",
        needs={"parallelism.data": at_least(2, numbers_of_replicas)},
        given=_ONE_CONTEXT_RANK,
        why=(
            "ZeRO shards model states over the data-parallel and context-parallel ranks, of "
            "which there is only one"
        ),
        example="memory: {zero_stage: 1}",
    ),
    Requires(
        "E344",
        "model.position_embedding",
        needs={"model.mtp_num_layers": 0},
        off=any_but("learned", near=("rope", "none")),
        why=(
            "multi-token prediction supports only rope or no position embedding (Megatron-LM's "
            "arguments.py)"
        ),
        example="model: {mtp_num_layers: 1}",
    ),
    Excludes(
        "E345",
        "recompute.num_layers",
        "full recompute has units of several layers and token prediction",
        lambda scenario: (
            scenario.model.mtp_num_layers
            and scenario.recompute.strategy == "full"
            and scenario.recompute.method != "block"
        ),
        reads=("model.mtp_num_layers",),
        near={"recompute.method": ["block"], "model.mtp_num_layers": [0]},
        why=(
            "full recompute checkpoints each module of multi-token prediction alone, as a unit of "
            "one layer (multi_token_prediction.py)"
        ),
        example=(
            "model: {mtp_num_layers: 1, position_embedding: rope}\n"
            "recompute: {strategy: full, num_layers: 2}"
        ),
    ),
]

NO_HOST_LINK = Requires(
    "E329",
    "memory.offload_optimizer",
    needs={"cluster": described_by("host_link")},
    why=(
        "the time of an offloaded optimizer follows from the profile's host_link.bandwidth and "
        "host_link.adam_bandwidth"
    ),
    example="memory: {offload_optimizer: true}\ncluster: trn1",
)
NO_FUSED_ATTENTION = Requires(
    "E331",
    "attention_backend",
    off="unfused",
    needs={"cluster": described_by("fused_attention")},
    why=(
        "the time of fused attention follows from the profile's section fused_attention; measure "
        "and fit it with python -m calibrate measure and python -m calibrate fit"
    ),
    example="attention_backend: fused\ncluster: v100_p3",
)
"""Rules that apply if the profile of the cluster lacks a section."""
