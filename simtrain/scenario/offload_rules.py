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
