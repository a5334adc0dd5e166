"""Rules of activations that wait on the host (offload).

Sources: Megatron-LM's `TransformerConfig.__post_init__` for fine_grained_activation_offloading, and
its documentation of this feature.
"""

from __future__ import annotations

from simtrain.scenario.rule import (
    Rules,
    against,
    any_but,
    at_least,
    at_most,
    excludes,
    requires,
    without_section,
)
from simtrain.scenario.schema import Scenario


def offloads(scenario: Scenario) -> bool:
    """Whether activations wait on the host."""
    return scenario.offload.unit != "none"


def _projection_alone(scenario: Scenario) -> bool:
    modules = scenario.offload.modules
    return "attn_proj" in modules and "core_attn" not in modules


def _reads_nothing(scenario: Scenario) -> bool:
    section = scenario.offload
    others = section.modules or section.layers or section.chunks or section.swaps
    return not offloads(scenario) and bool(others)


OFFLOAD_RULES = Rules()
OFFLOAD_RULES += [
    against(
        "E441",
        _reads_nothing,
        "offload.unit is none while other fields of offload are set",
        why="without a unit nothing is copied, so the other fields of offload have no effect",
        example="offload: {unit: none, layers: 4}",
    ),
    excludes(
        "E443",
        "offload.unit",
        "passes are merged or sequences are sliced",
        lambda scenario: scenario.merges_passes or scenario.parallelism.sequence_slices > 1,
        reads=("schedule", "overlap.merged_passes", "parallelism.sequence_slices"),
        why="copies to and from the host beside merged passes, or of slices of sequences, are not "
        "simulated",
        example="model: {biases: false, experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}}\n"
        "parallelism: {data: 4, expert: 4}\n"
        "overlap: {merged_passes: true}\n"
        "offload: layer",
    ),
    at_most(
        "E445",
        "offload.layers",
        "the layers of the largest chunk",
        lambda scenario: max(scenario.chunk_sizes),
        why="no chunk has so many layers, so the number would have no effect",
        example="offload: {layers: 1000}",
    ),
    at_most(
        "E446",
        "offload.chunks",
        "the chunks of a stage",
        lambda scenario: scenario.num_chunks,
        why="no stage has so many chunks, so the number would have no effect",
        example="offload: {chunks: 2}",
    ),
    requires(
        "E447",
        "offload.unit",
        needs={"software.cuda_graphs": False},
        why="Megatron-LM's CUDA graphs of whole layers cannot contain the copies",
        example="software: {cuda_graphs: true}\noffload: layer",
    ),
    requires(
        "E448",
        "offload.unit",
        needs={"parallelism.pipeline": at_least(2)},
        off=any_but("chunk"),
        why="without a pipeline each backward pass follows its forward pass, so a whole chunk "
        "would come back at once",
        example="offload: chunk",
    ),
    against(
        "E449",
        _projection_alone,
        "offload.modules contains attn_proj without core_attn",
        why="Megatron-LM refuses attn_proj without core_attn, whose backward pass would keep the "
        "same tensor on the GPU",
        example="offload: {modules: [attn_proj]}",
    ),
]

NO_HOST_COPIES = without_section(
    "E444",
    "offload.unit",
    "host_link",
    why="the time of copies to and from the host follows from the profile's host_link.bandwidth",
    example="offload: layer\ncluster: trn1",
)
"""The rule that applies if the profile of the cluster has no link to the host."""

NO_DISKS = without_section(
    "E926",
    "offload.device",
    "nvme",
    why="the time of activations to and from the disks follows from the profile's section nvme",
    example="offload: {device: nvme}",
)
"""The rule that applies if the profile of the cluster has no disks."""


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
