"""Rules of activations that wait on the host (offload).

Sources: Megatron-LM's `TransformerConfig.__post_init__` for fine_grained_activation_offloading, and
its documentation of this feature.
"""

from __future__ import annotations

from simtrain.scenario.allowed_values import any_but, at_least, described_by
from simtrain.scenario.at_most import AtMost
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, rule_against
from simtrain.schedules.registry import NAMED


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


OFFLOAD_RULES: list[Rule] = [
    rule_against(
        "E441",
        "without a unit nothing is copied, so the other fields of offload have no effect",
        {"offload.unit": ["layer", "chunk"], "offload": ["none"]},
        _reads_nothing,
        "offload.unit is none while other fields of offload are set",
        ("offload.unit",),
        what="Fields of offload are set, but nothing is copied to the host.",
        fix="Set offload.unit to layer or chunk, or remove the section offload.",
        example="offload: {unit: none, layers: 4}",
    ),
    Excludes(
        "E443",
        "offload.unit",
        "passes are merged or sequences are sliced",
        lambda scenario: scenario.merges_passes or scenario.parallelism.sequence_slices > 1,
        reads=("schedule", "overlap.merged_passes", "parallelism.sequence_slices"),
        near={
            "overlap.merged_passes": [False],
            "parallelism.sequence_slices": [1],
            "schedule": [name for name, family in NAMED.items() if not family.merges],
        },
        why=(
            "copies to and from the host beside merged passes, or of slices of sequences, are not "
            "simulated"
        ),
        example=(
            "model: {biases: false, experts: {num: 8, top_k: 2, ffn_hidden_size: 4096}}\n"
            "parallelism: {data: 4, expert: 4}\n"
            "overlap: {merged_passes: true}\n"
            "offload: layer"
        ),
    ),
    AtMost(
        "E445",
        "offload.layers",
        "the layers of the largest chunk",
        lambda scenario: max(scenario.chunk_sizes),
        why="no chunk has so many layers, so the number would have no effect",
        example="offload: {layers: 1000}",
    ),
    AtMost(
        "E446",
        "offload.chunks",
        "the chunks of a stage",
        lambda scenario: scenario.num_chunks,
        why="no stage has so many chunks, so the number would have no effect",
        example="offload: {chunks: 2}",
    ),
    Requires(
        "E447",
        "offload.unit",
        needs={"software.cuda_graphs": False},
        why="Megatron-LM's CUDA graphs of whole layers cannot contain the copies",
        example="software: {cuda_graphs: true}\noffload: layer",
    ),
    Requires(
        "E448",
        "offload.unit",
        needs={"parallelism.pipeline": at_least(2, near=())},
        off=any_but("chunk", near=("layer", "none")),
        why=(
            "without a pipeline each backward pass follows its forward pass, so a whole chunk "
            "would come back at once"
        ),
        example="offload: chunk",
    ),
    rule_against(
        "E449",
        "Megatron-LM refuses attn_proj without core_attn, whose backward pass would keep the same "
        "tensor on the GPU",
        {
            "offload.modules": lambda scenario: [
                ["core_attn", *scenario.offload.modules],
                [module for module in scenario.offload.modules if module != "attn_proj"],
            ]
        },
        _projection_alone,
        "offload.modules contains attn_proj without core_attn",
        what="The input of the attention's projection is to wait on the host, its core's is not.",
        fix="Add core_attn to offload.modules, or remove attn_proj.",
        example="offload: {modules: [attn_proj]}",
    ),
]

NO_HOST_COPIES = Requires(
    "E444",
    "offload.unit",
    needs={"cluster": described_by("host_link")},
    why="the time of copies to and from the host follows from the profile's host_link.bandwidth",
    example="offload: layer\ncluster: trn1",
)
"""The rule that applies if the profile of the cluster has no link to the host."""

NO_DISKS = Requires(
    "E926",
    "offload.device",
    needs={"cluster": described_by("nvme")},
    why="the time of activations to and from the disks follows from the profile's section nvme",
    example="offload: {device: nvme}",
)
"""The rule that applies if the profile of the cluster has no disks."""
