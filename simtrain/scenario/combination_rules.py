"""Combinations of settings that the frameworks refuse; for the sources see `rules`."""

from __future__ import annotations

from simtrain.scenario.rule import (
    Rules,
    against,
    any_but,
    at_least,
    excludes,
    requires,
    without_section,
)
from simtrain.scenario.schema import Scenario
from simtrain.schedules import NAMED


def recomputes(scenario: Scenario) -> bool:
    """Whether layers are recomputed, so that some microbatches can be exempt."""
    return scenario.recompute.strategy in ("selective", "full")


def _named(*, has_chunks: bool) -> list[str]:
    return [name for name, family in NAMED.items() if family.has_chunks is has_chunks]


def _has_chunks(scenario: Scenario) -> bool | None:
    """Whether a schedule with a name runs several chunks per stage; None for one from a file."""
    return None if scenario.schedule_file else NAMED[scenario.schedule].has_chunks


def _exact_chunks() -> list[str]:
    """Words for the schedules that allow one number of chunks above 1, or multiples of one."""
    exact = {name: family.num_chunks for name, family in NAMED.items()}
    waves = {name: family.chunks_per_wave for name, family in NAMED.items()}
    return [
        *(f"{name} needs {number}" for name, number in exact.items() if number),
        *(f"{name} needs a multiple of {number}" for name, number in waves.items() if number > 1),
    ]


def _may_overlap(scenario: Scenario) -> bool:
    return scenario.schedule_file is not None or scenario.schedule_family.overlaps


COMBINATION_RULES = Rules()
COMBINATION_RULES += [
    requires(
        "E308",
        "parallelism.sequence_parallel",
        needs={"parallelism.tensor": at_least(2)},
        why="sequence parallelism shards each sequence over the tensor-parallel group, which "
        "needs at least 2 ranks",
        example="parallelism: {sequence_parallel: true}",
    ),
    requires(
        "E309",
        "parallelism.interleave",
        needs={"parallelism.pipeline": at_least(2)},
        off=1,
        why="interleaving alternates between the chunks of several stages; a pipeline of one "
        "stage has nothing to interleave",
        example="parallelism: {interleave: 3}",
    ),
    against(
        "E310",
        lambda scenario: (
            scenario.parallelism.pipeline == 2
            and scenario.num_chunks != 1
            and not scenario.overlaps_pipeline
        ),
        "parallelism.pipeline is 2, but the interleaved schedule with blocking transfers needs "
        "more than 2 stages",
        why="with two stages, the next and the previous stage are the same rank, and batched "
        "sends and receives to one rank are ambiguous",
        example="parallelism: {pipeline: 2, interleave: 3}",
        first=("parallelism.pipeline", "overlap.pipeline", "parallelism.interleave"),
    ),
    against(
        "E312",
        lambda scenario: (
            _has_chunks(scenario) is True
            and not scenario.schedule_family.allows_chunks(scenario.num_chunks)
        ),
        "schedule is {scenario.schedule} while parallelism.interleave is {scenario.num_chunks}",
        why="; ".join(["interleaved schedules need at least 2 chunks per stage", *_exact_chunks()]),
        example="parallelism: {pipeline: 4}\nschedule: interleaved",
    ),
    against(
        "E313",
        lambda scenario: _has_chunks(scenario) is False and scenario.num_chunks != 1,
        "schedule is {scenario.schedule} while parallelism.interleave is {scenario.num_chunks}",
        why=f"{', '.join(_named(has_chunks=False))} run one chunk per stage",
        example="parallelism: {pipeline: 4, interleave: 2}\nschedule: 1f1b",
    ),
    requires(
        "E314",
        "parallelism.scatter_gather",
        needs={"parallelism.sequence_parallel": False},
        off=False,
        why="with sequence parallelism, the output of a stage is already sharded over the "
        "tensor-parallel ranks",
        example="parallelism: {tensor: 8, sequence_parallel: true, scatter_gather: true}",
    ),
    against(
        "E315",
        lambda scenario: scenario.gradient_type not in ("fp32", scenario.precision.weights),
        "precision.gradients is {scenario.gradient_type} while precision.compute is "
        "{scenario.precision.compute}",
        why="gradients are accumulated in fp32 or in the dtype of the weights",
        example="precision: {compute: bf16, gradients: fp16}",
    ),
    excludes(
        "E316",
        "overlap.pipeline",
        "the schedule has blocking transfers",
        lambda scenario: not _may_overlap(scenario),
        reads=("schedule",),
        off=False,
        why="Megatron-LM overlaps pipeline transfers only in the interleaved schedule; the other "
        "schedules raise an error",
        example="parallelism: {pipeline: 4}\noverlap: {pipeline: true}",
    ),
    requires(
        "E322",
        "recompute.keep_microbatches",
        needs={"recompute.strategy": ("selective", "full")},
        why="keep_microbatches exempts some microbatches from recompute; without recompute it "
        "has no effect",
        example="parallelism: {pipeline: 4}\nrecompute: {keep_microbatches: 2}",
    ),
    requires(
        "E323",
        "recompute.keep_microbatches",
        needs={"parallelism.pipeline": at_least(2)},
        why="the schedule of a single stage (forward_backward_no_pipelining) recomputes every "
        "microbatch",
        example="recompute: {strategy: full, keep_microbatches: 1}",
    ),
    excludes(
        "E325",
        "memory.zero_stage",
        "a pipeline accumulates sharded gradients",
        lambda scenario: scenario.parallelism.pipeline != 1 and not scenario.fully_shards,
        reads=("parallelism.pipeline", "software.stack"),
        off=(1, 0),
        why="ZeRO stages 2 and 3 shard gradients that a pipeline still accumulates (DeepSpeed "
        "refuses it); only PyTorch's fully_shard, as stage 3, accumulates them unsharded first",
        example="parallelism: {pipeline: 4, data: 2}\nmemory: {zero_stage: 2}",
    ),
    requires(
        "E326",
        "memory.zero_stage",
        needs={"parallelism.data": at_least(2)},
        where=lambda scenario: scenario.parallelism.context == 1,
        why="ZeRO shards model states over the data-parallel and context-parallel ranks, of "
        "which there is only one",
        example="memory: {zero_stage: 1}",
    ),
    requires(
        "E344",
        "model.position_embedding",
        needs={"model.mtp_num_layers": 0},
        off=any_but("learned"),
        why="multi-token prediction supports only rope or no position embedding (Megatron-LM's "
        "arguments.py)",
        example="model: {mtp_num_layers: 1}",
    ),
    excludes(
        "E345",
        "recompute.num_layers",
        "full recompute has units of several layers and token prediction",
        lambda scenario: (
            scenario.model.mtp_num_layers
            and scenario.recompute.strategy == "full"
            and scenario.recompute.method != "block"
        ),
        reads=("model.mtp_num_layers",),
        why="full recompute checkpoints each module of multi-token prediction alone, as a unit of "
        "one layer (multi_token_prediction.py)",
        example="model: {mtp_num_layers: 1, position_embedding: rope}\n"
        "recompute: {strategy: full, num_layers: 2}",
    ),
]

NO_HOST_LINK = without_section(
    "E329",
    "memory.offload_optimizer",
    "host_link",
    why="the time of an offloaded optimizer follows from the profile's host_link.bandwidth and "
    "host_link.adam_bandwidth",
    example="memory: {offload_optimizer: true}\ncluster: trn1",
)
NO_FUSED_ATTENTION = without_section(
    "E331",
    "attention_backend",
    "fused_attention",
    off="unfused",
    why="the time of fused attention follows from the profile's section fused_attention; measure "
    "and fit it with simtrain calibrate measure and simtrain calibrate fit",
    example="attention_backend: fused\ncluster: v100_p3",
)
"""Rules that apply if the profile of the cluster lacks a section."""
