"""Rules of model states on the host and on NVMe (memory.offload_gradients and what follows).

Sources: DeepSpeed's runtime/zero/stage3.py (`offload_param` needs `offload_optimizer`),
runtime/engine.py (a pipeline takes no ZeRO stage above 1), and runtime/zero/stage_1_and_2.py.
"""

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

_IN_PASSES = "memory.offload_gradients", "memory.offload_parameters"
_BESIDE_PASSES = *_IN_PASSES, "memory.delayed_update"


def _lacks_offload(scenario: Scenario) -> bool:
    """Whether states are on NVMe that are not offloaded."""
    memory = scenario.memory
    return (memory.optimizer_on_nvme and not memory.offload_optimizer) or (
        memory.parameters_on_nvme and not memory.offload_parameters
    )


HOST_STATE_RULES = Rules()
HOST_STATE_RULES += [
    requires(
        "E970",
        _BESIDE_PASSES,
        needs={"memory.offload_optimizer": True},
        why="the host's Adam reads offloaded gradients and writes offloaded parameters; DeepSpeed "
        "offloads parameters only together with the optimizer states",
        example="memory: {offload_gradients: true}",
    ),
    requires(
        "E971",
        "memory.offload_gradients",
        needs={"memory.zero_stage": (2, 3)},
        where=lambda scenario: scenario.has_replicas,
        why="gradients leave for the host as soon as they are reduced, and only ZeRO stages 2 and "
        "3 reduce the gradients of every microbatch",
        example="parallelism: {data: 2}\n"
        "memory: {zero_stage: 1, offload_optimizer: true, offload_gradients: true}",
    ),
    requires(
        "E972",
        "memory.offload_parameters",
        needs={"memory.zero_stage": 3},
        where=lambda scenario: scenario.has_replicas,
        why="replicas have a shard of each parameter on their hosts, as in ZeRO stage 3",
        example="parallelism: {data: 2}\n"
        "memory: {zero_stage: 2, offload_optimizer: true, offload_parameters: true}",
    ),
    against(
        "E973",
        _lacks_offload,
        "memory.nvme is {scenario.memory.nvme}, but these states are not offloaded",
        why="only offloaded states can be on NVMe: the host reads them from its disks and writes "
        "them",
        example="memory: {nvme: optimizer}",
    ),
    requires(
        "E974",
        "memory.parameter_owners",
        needs={
            "memory.offload_parameters": True,
            "parallelism.data": at_least(2),
        },
        why="who copies a parameter to the GPUs is a question only if several replicas have it on "
        "their hosts",
        example="memory: {parameter_owners: one}",
    ),
    excludes(
        "E975",
        "memory.sub_group_size",
        "the update has no streams of its own",
        lambda scenario: not scenario.memory.updates_beside,
        reads=("memory.delayed_update", "memory.nvme"),
        why="without NVMe and without a delayed update, Adam updates all parameters at once",
        example="memory: {offload_optimizer: true, sub_group_size: 1000}",
    ),
    requires(
        "E976",
        (*_BESIDE_PASSES, "memory.nvme"),
        needs={
            "parallelism.pipeline": 1,
            "parallelism.sequence_slices": 1,
            "overlap.optimizer_post_validation": False,
        },
        why="DeepSpeed's pipelines take no ZeRO stage above 1, and copies of states and updates "
        "beside the passes of a pipeline or of slices are not simulated",
        example="parallelism: {pipeline: 4}\nmemory: {offload_optimizer: true, delayed_update: "
        "true}",
    ),
    requires(
        "E977",
        _IN_PASSES,
        needs={
            "overlap.merged_passes": False,
            "overlap.deferred_output_gradients": 0,
            "software.cuda_graphs": False,
            "memory.reshard_after_forward": True,
            "memory.reduce_every_microbatch": True,
            "model.lora": None,
            "precision.compute": any_but("fp8", "fp4"),
        },
        why="copies of states beside merged passes, in CUDA graphs, of adapters, of weights that "
        "are cast to fp8 or fp4, or of states that stay on the GPU for several passes are not "
        "simulated",
        example="memory: {offload_optimizer: true, offload_gradients: true}\n"
        "software: {cuda_graphs: true}",
    ),
]

NO_NVME = without_section(
    "E978",
    "memory.nvme",
    "nvme",
    why="the time of reads and writes follows from the profile's section nvme",
    example="memory: {offload_optimizer: true, nvme: optimizer}",
)
"""The rule that applies if the profile of the cluster has no disks."""
