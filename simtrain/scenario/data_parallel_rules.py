"""Rules of data parallelism: combinations of options that the frameworks refuse.

Sources: Megatron-LM's training/arguments.py and core/pipeline_parallel/schedules.py; PyTorch's
torch/distributed/fsdp/_fully_shard.
"""

from __future__ import annotations

from simtrain.scenario.rule import Rules, against, at_least, excludes, requires
from simtrain.scenario.schema import Scenario


def _least_replicas(scenario: Scenario) -> int:
    """The least legal memory.shard_over: one replica can shard states over its context ranks."""
    return 2 if scenario.parallelism.context == 1 else 1


def sharding_ranks(scenario: Scenario) -> int:
    """Ranks over which each parameter is sharded."""
    split = scenario.parallelism
    return (scenario.memory.shard_over or split.data) * split.context


def _cannot_reshard(scenario: Scenario) -> bool:
    """Whether memory.reshard_after_forward is a number of ranks that cannot shard a parameter."""
    reshards = scenario.memory.reshard_after_forward
    if isinstance(reshards, bool):
        return False
    divides = sharding_ranks(scenario)
    return not 1 < reshards < divides or divides % reshards != 0


def _fully_shards_pipeline(scenario: Scenario) -> bool:
    """Whether fully_shard shards the parameters of pipeline stages."""
    return scenario.fully_shards and scenario.parallelism.pipeline > 1


DATA_PARALLEL_RULES = Rules()
DATA_PARALLEL_RULES += [
    requires(
        "E360",
        "overlap.parameter_gather",
        needs={"overlap.data_parallel": True},
        off=False,
        why="parameters are gathered in the buckets of the overlapped gradient reduction "
        "(--overlap-param-gather needs --overlap-grad-reduce)",
        example="memory: {zero_stage: 1}\nparallelism: {data: 2}\noverlap: {parameter_gather: "
        "true}",
    ),
    requires(
        "E361",
        "overlap.parameter_gather",
        needs={"memory.zero_stage": 1},
        off=False,
        why="only the distributed optimizer (stage 1) overlaps the gather of parameters with "
        "the next forward pass; stage 0 gathers nothing, stage 2 gathers all parameters "
        "after the optimizer, and stage 3 gathers them within every pass",
        example="overlap: {data_parallel: true, parameter_gather: true}",
    ),
    excludes(
        "E362",
        "overlap.gradient_buckets",
        "gradients are not reduced in buckets",
        lambda scenario: not scenario.reduces_in_buckets,
        reads=("overlap.data_parallel", "memory.zero_stage", "parallelism.data"),
        why="gradients are reduced in buckets only if several replicas reduce them once per "
        "iteration, overlapped with the backward pass",
        example="overlap: {gradient_buckets: megatron}",
    ),
    excludes(
        "E363",
        "overlap.align_gradient_reduction",
        "no two stages overlap the gradient reduction with the backward pass",
        lambda scenario: scenario.parallelism.pipeline < 2 or not scenario.reduces_in_buckets,
        reads=("overlap.data_parallel", "parallelism.pipeline", "parallelism.data"),
        off=False,
        why="only pipeline stages that overlap the gradient reduction with the backward pass can "
        "be aligned",
        example="overlap: {data_parallel: true, align_gradient_reduction: true}",
    ),
    excludes(
        "E364",
        "overlap.align_parameter_gather",
        "no interleaved chunks overlap the gather of parameters with forward passes",
        lambda scenario: (
            not (scenario.overlaps_parameter_gather and scenario.schedule_family.gathers_by_chunk)
        ),
        reads=("overlap.parameter_gather", "schedule"),
        off=False,
        why="only the interleaved schedule gathers parameters ahead, chunk by chunk (Megatron-LM "
        "turns --align-param-gather off in the other schedules)",
        example="overlap: {align_parameter_gather: true}",
    ),
    against(
        "E365",
        lambda scenario: (
            scenario.memory.shard_over is not None
            and (
                scenario.memory.shard_over < _least_replicas(scenario)
                or scenario.parallelism.data % scenario.memory.shard_over != 0
            )
        ),
        "memory.shard_over is {scenario.memory.shard_over}, which cannot shard states over "
        "parallelism.data ({scenario.parallelism.data}) replicas",
        why="states are sharded over groups of replicas of equal size, each with at least 2 ranks",
        example="parallelism: {data: 4}\nmemory: {zero_stage: 1, shard_over: 3}",
    ),
    requires(
        "E366",
        "memory.shard_over",
        needs={"memory.zero_stage": at_least(1)},
        why="without ZeRO (or the distributed optimizer), every replica holds all states unsharded",
        example="parallelism: {data: 4}\nmemory: {shard_over: 2}",
    ),
    requires(
        "E367",
        "overlap.prefetch",
        needs={"memory.zero_stage": 3, "overlap.data_parallel": True},
        why="only gathers that overlap with compute can run ahead of it",
        example="parallelism: {data: 4}\noverlap: {prefetch: 2}",
    ),
    excludes(
        "E368",
        "memory.reshard_after_forward",
        "parameters are not gathered for each pass",
        lambda scenario: (
            not (
                (scenario.memory.zero_stage == 3 and scenario.schedule_family.alternates)
                or _fully_shards_pipeline(scenario)
            )
        ),
        reads=("memory.zero_stage", "schedule"),
        off=lambda value: value is True,
        why="only stage 3 gathers parameters for each pass and can keep them until the backward "
        "pass; with gpipe, other forward passes run in between",
        example="memory: {reshard_after_forward: false}",
    ),
    against(
        "E369",
        _cannot_reshard,
        "memory.reshard_after_forward is {scenario.memory.reshard_after_forward}, which is "
        "not a proper divisor (2 or more) of the ranks that shard parameters",
        why="between forward and backward pass, fully_shard shards a parameter over groups of "
        "equal size, with at least 2 ranks and fewer than those that shard it otherwise",
        example="parallelism: {data: 4}\nmemory: {zero_stage: 3, reshard_after_forward: 3}",
    ),
    requires(
        "E370",
        "memory.reduce_every_microbatch",
        needs={"memory.zero_stage": (2, 3)},
        why="without sharded gradients (stages 0 and 1), gradients are always reduced only "
        "after the last microbatch",
        example="memory: {reduce_every_microbatch: false}",
    ),
    requires(
        "E379",
        "memory.reduce_every_microbatch",
        needs={"parallelism.pipeline": 1},
        off=False,
        where=lambda scenario: scenario.fully_shards,
        why="torch.distributed.pipelining accumulates the gradients of all microbatches and "
        "then reduces them once (stage.py, perform_reduce_grad)",
        example="parallelism: {pipeline: 4, data: 2}\n"
        "model: {tied_embeddings: false}\n"
        "memory: {zero_stage: 3}\n"
        "software: torchtitan",
    ),
    against(
        "E397",
        lambda scenario: _fully_shards_pipeline(scenario) and scenario.model.shares_embedding,
        "model.tied_embeddings or multi-token prediction makes the first and the last of "
        "{scenario.parallelism.pipeline} stages share an embedding that fully_shard shards",
        why="torchtitan does not support tied embeddings in a pipeline: the first and the last "
        "stage hold separate parameters",
        example="parallelism: {pipeline: 4, data: 2}\n"
        "memory: {zero_stage: 3, reduce_every_microbatch: false}\n"
        "software: torchtitan",
    ),
    against(
        "E398",
        lambda scenario: (
            _fully_shards_pipeline(scenario)
            and not isinstance(scenario.memory.reshard_after_forward, bool)
        ),
        "parallelism.pipeline is {scenario.parallelism.pipeline}, whose passes cannot use "
        "memory.reshard_after_forward {scenario.memory.reshard_after_forward}",
        why="resharding to a smaller group between the passes of a pipeline is not simulated",
        example="parallelism: {pipeline: 4, data: 4}\n"
        "model: {tied_embeddings: false}\n"
        "memory: {zero_stage: 3, reduce_every_microbatch: false, reshard_after_forward: 2}\n"
        "software: torchtitan",
    ),
    excludes(
        "E980",
        "memory.gathered_chunks",
        "fully_shard shards no pipeline",
        lambda scenario: not _fully_shards_pipeline(scenario),
        reads=("memory.zero_stage", "parallelism.pipeline", "software.stack"),
        off=None,
        why="only torch.distributed.pipelining gathers and frees the parameters of whole chunks of "
        "a stage, with fully_shard",
        example="parallelism: {pipeline: 4, data: 2}\nmemory: {gathered_chunks: 2}",
    ),
    requires(
        "E981",
        "memory.gathered_chunks",
        needs={
            "memory.reshard_after_forward": True,
            "overlap.data_parallel": True,
        },
        where=_fully_shards_pipeline,
        why="chunks are gathered beside the passes of other chunks and freed between passes",
        example="parallelism: {pipeline: 4, data: 2}\n"
        "model: {tied_embeddings: false}\n"
        "memory: {zero_stage: 3, reduce_every_microbatch: false, gathered_chunks: 2}\n"
        "overlap: {data_parallel: false}\n"
        "software: torchtitan",
    ),
    requires(
        "E378",
        "memory.offload_optimizer",
        needs={"software.fully_shard": False},
        where=lambda scenario: scenario.fully_shards,
        why="fully_shard offloads parameters and gradients together with the optimizer states "
        "(CPUOffloadPolicy), which is not simulated",
        example="parallelism: {data: 4}\n"
        "memory: {zero_stage: 3, offload_optimizer: true}\n"
        "software: torchtitan",
    ),
]
