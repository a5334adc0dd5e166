"""Combinations of settings that the frameworks refuse; for the sources see `rules`."""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import numbers_of_chunks, numbers_of_stages
from simtrain.scenario.violation import rule_against, rule_for_one_of
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


def _may_overlap(scenario: Scenario) -> bool:
    """Whether the pipeline's runtime can send messages beside compute; that of files always can."""
    return scenario.schedule_file is not None or scenario.schedule_family.overlaps


def _weights(scenario: Scenario) -> str:
    """The dtype of weights; bf16 if products run in fp8."""
    compute = scenario.precision.compute
    return "bf16" if compute == "fp8" else compute


COMBINATION_RULES = [
    rule_against(
        "E308",
        "sequence parallelism shards each sequence over the tensor-parallel group, which needs at "
        "least 2 ranks",
        {"parallelism.sequence_parallel": [False], "parallelism.tensor": numbers_of_ranks},
        lambda one: one.parallelism.tensor < 2 and one.parallelism.sequence_parallel,
    ),
    rule_against(
        "E309",
        "interleaving alternates between the chunks of several stages; a pipeline of one stage has "
        "nothing to interleave",
        {"parallelism.interleave": [1], "parallelism.pipeline": numbers_of_stages},
        lambda one: one.parallelism.pipeline < 2 and one.num_chunks != 1,
    ),
    rule_against(
        "E310",
        "with two stages, the next and the previous stage are the same rank, and batched sends and "
        "receives to one rank are ambiguous",
        {
            "parallelism.pipeline": lambda one: numbers_of_stages(one, at_least=3),
            "overlap.pipeline": [True],
            "parallelism.interleave": [1],
        },
        lambda one: (
            one.parallelism.pipeline == 2 and one.num_chunks != 1 and not one.overlaps_pipeline
        ),
        "parallelism.pipeline is 2, but the interleaved schedule with blocking transfers needs "
        "more than 2 stages",
    ),
    rule_against(
        "E312",
        "interleaved schedules need at least 2 chunks per stage",
        {"schedule": _named(has_chunks=False), "parallelism.interleave": numbers_of_chunks},
        lambda one: one.schedule in _named(has_chunks=True) and one.num_chunks < 2,
    ),
    rule_against(
        "E313",
        f"{' and '.join(sorted(_named(has_chunks=False), reverse=True))} run one chunk per stage",
        {"schedule": _named(has_chunks=True), "parallelism.interleave": [1]},
        lambda one: one.schedule in _named(has_chunks=False) and one.num_chunks != 1,
    ),
    rule_against(
        "E314",
        "with sequence parallelism, the output of a stage is already sharded over the "
        "tensor-parallel ranks",
        {"parallelism.scatter_gather": [False], "parallelism.sequence_parallel": [False]},
        lambda one: one.parallelism.sequence_parallel and one.parallelism.scatter_gather,
    ),
    rule_against(
        "E315",
        "gradients are accumulated in fp32 or in the dtype of the weights",
        {
            "precision.gradients": lambda one: list(dict.fromkeys([_weights(one), "fp32"])),
            "precision.compute": [],
        },
        lambda one: one.precision.gradients not in ("fp32", _weights(one)),
    ),
    rule_against(
        "E316",
        "Megatron-LM overlaps pipeline transfers only in the interleaved schedule; the other "
        "schedules raise an error",
        {"overlap.pipeline": [False], "parallelism.interleave": numbers_of_chunks},
        lambda one: one.overlaps_pipeline and not _may_overlap(one),
        fields=("overlap.pipeline", "schedule"),
    ),
    rule_against(
        "E320",
        "the saved input of a recomputed unit is sharded over the tensor-parallel group, which "
        "needs at least 2 ranks",
        {"recompute.distribute": [False], "parallelism.tensor": numbers_of_ranks},
        lambda one: one.parallelism.tensor < 2 and one.recompute.distribute,
    ),
    rule_against(
        "E321",
        "with sequence parallelism, the saved input of a recomputed unit is already sharded over "
        "the tensor-parallel ranks",
        {"recompute.distribute": [False], "parallelism.sequence_parallel": [False]},
        lambda one: one.parallelism.sequence_parallel and one.recompute.distribute,
    ),
    rule_for_one_of(
        "E322",
        "keep_microbatches exempts some microbatches from recompute; without recompute it has no "
        "effect",
        {"recompute.keep_microbatches": [0], "recompute.strategy": ["selective", "full"]},
    ),
    rule_against(
        "E323",
        "the schedule of a single stage (forward_backward_no_pipelining) recomputes every "
        "microbatch",
        {"recompute.keep_microbatches": [0], "parallelism.pipeline": numbers_of_stages},
        lambda one: one.parallelism.pipeline < 2 and one.recompute.keep_microbatches,
    ),
    rule_against(
        "E325",
        "ZeRO stages 2 and 3 shard gradients that a pipeline still accumulates (DeepSpeed refuses "
        "it); only PyTorch's fully_shard, as stage 3, accumulates them unsharded first",
        {
            "memory.zero_stage": [1, 0, 3],
            "parallelism.pipeline": [1],
            "software.fully_shard": [True],
        },
        lambda one: (
            one.parallelism.pipeline != 1 and one.memory.zero_stage > 1 and not one.fully_shards
        ),
    ),
    rule_against(
        "E326",
        "ZeRO shards model states over the data-parallel and context-parallel ranks, of which "
        "there is only one",
        {
            "memory.zero_stage": [0],
            "parallelism.data": lambda one: near_divisors(1, one.batch.global_, at_least=2),
        },
        lambda one: one.parallelism.data * one.parallelism.context < 2 and one.memory.zero_stage,
    ),
    rule_for_one_of(
        "E344",
        "multi-token prediction supports only rope or no position embedding (Megatron-LM's "
        "arguments.py)",
        {"model.position_embedding": ["rope", "none"], "model.mtp_num_layers": [0]},
    ),
    rule_for_one_of(
        "E345",
        "full recompute checkpoints each module of multi-token prediction alone, as a unit of one "
        "layer (multi_token_prediction.py)",
        {"recompute.num_layers": [1], "recompute.method": ["block"], "model.mtp_num_layers": [0]},
        lambda one: one.model.mtp_num_layers and one.recompute.strategy == "full",
        fields=("recompute.num_layers", "model.mtp_num_layers"),
    ),
]

NO_HOST_LINK = rule_for_one_of(
    "E329",
    "the time of an offloaded optimizer follows from the profile's host_link.bandwidth and "
    "host_link.adam_bandwidth",
    {"memory.offload_optimizer": [False], "cluster": []},
    message="memory.offload_optimizer is true, but the profile of {one.cluster} has no section "
    "host_link",
)
NO_FUSED_ATTENTION = rule_for_one_of(
    "E331",
    "the time of fused attention follows from the profile's section fused_attention; measure and "
    "fit it with python -m calibrate measure and python -m calibrate fit",
    {"attention_backend": ["unfused"], "cluster": []},
    message="attention_backend is fused, but the profile of {one.cluster} has no section "
    "fused_attention",
)
"""Rules that apply if the profile of the cluster lacks a section."""
