"""Rules of splits of the layers' matrices (parallelism.tensor_split).

Sources: Colossal-AI's legacy layers (`divide` in nn/layer/utils, `check_sanity` of its process
groups); what simtrain does not simulate with a split, it refuses.
"""

from __future__ import annotations

from simtrain.scenario.rule import Rules, requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.tensor_splits import TENSOR_SPLITS

TENSOR_SPLIT_RULES = Rules()
rule = TENSOR_SPLIT_RULES.rule
_SPLIT, _TENSOR = "parallelism.tensor_split", "parallelism.tensor"
_DEPTH = "parallelism.tensor_depth"


@rule(
    "E935",
    "only a grid with layers has a depth, and its number of ranks does not tell it",
    "parallelism: {tensor: 4, tensor_split: 2d, tensor_depth: 2}\nbatch: {micro: 4}",
)
def _depth_is_of_the_split(scenario: Scenario) -> str | None:
    split, depth = scenario.parallelism.matrix_split, scenario.parallelism.tensor_depth
    has_depth = split is not None and split.has_depth
    if has_depth is (depth is not None):
        return None
    if has_depth:
        message = f"{_SPLIT} is {scenario.parallelism.tensor_split} without {_DEPTH}"
        return message
    message = f"{_DEPTH} is {depth} while {_SPLIT} is {scenario.parallelism.tensor_split}"
    return message


@rule(
    "E930",
    "the tensor-parallel ranks form the grid of the split: "
    + "; ".join(f"{name} {split.ranks}" for name, split in TENSOR_SPLITS.items()),
    "parallelism: {tensor: 1, tensor_split: hidden}",
)
def _ranks_form_a_grid(scenario: Scenario) -> str | None:
    parallelism, split = scenario.parallelism, scenario.parallelism.matrix_split
    if split is None or parallelism.grid_sizes or _depth_is_of_the_split(scenario):
        return None
    return f"{_TENSOR} is {parallelism.tensor}, but {_SPLIT} {split.name} needs {split.ranks} ranks"


@rule(
    "E932",
    "each rank has an equal part of the channels of every matrix and of the vocabulary",
    "model: {hidden_size: 6146, num_attention_heads: 64, kv_channels: 96}\n"
    "parallelism: {tensor: 4, tensor_split: hidden}",
)
def _channels_are_divided(scenario: Scenario) -> str | None:
    parallelism, model = scenario.parallelism, scenario.model
    split, axes = parallelism.matrix_split, parallelism.grid_sizes
    if split is None or axes is None:
        return None
    _, _, channels, words = split.shares(axes)
    sizes = {
        "model.hidden_size": (model.hidden_size, channels),
        "model.ffn_hidden_size": (model.ffn_hidden_size, channels),
        "model.vocab_size": (model.vocab_size, words),
    }
    for field, (size, ranks) in sizes.items():
        if size % ranks:
            return (
                f"{field} is {size}, which {ranks} ranks along the axes of {_SPLIT} {split.name} "
                "cannot share"
            )
    return None


@rule(
    "E933",
    "the ranks along one axis of the grid divide heads, and each has whole ones",
    "model: {num_attention_heads: 15, hidden_size: 1920}\n"
    "parallelism: {tensor: 4, tensor_split: 2d}",
)
def _heads_are_divided(scenario: Scenario) -> str | None:
    parallelism, model = scenario.parallelism, scenario.model
    ranks = parallelism.ranks_of_heads
    if parallelism.has_one_axis or not parallelism.grid_sizes:  # E301 and E334
        return None
    numbers = {
        "model.num_attention_heads": model.num_attention_heads,
        "model.num_query_groups": model.num_query_groups,
    }
    for field, number in numbers.items():
        if number % ranks:
            return (
                f"{field} is {number}, which {ranks} ranks along an axis of {_SPLIT} "
                f"{parallelism.tensor_split} cannot share"
            )
    return None


@rule(
    "E934",
    "ranks along some axes of the grid divide the sequences of each microbatch",
    "parallelism: {tensor: 4, tensor_split: 2d}\nbatch: {micro: 3, global: 12}",
)
def _sequences_are_divided(scenario: Scenario) -> str | None:
    parallelism, micro = scenario.parallelism, scenario.batch.micro
    ranks = parallelism.ranks_of_sequences
    if micro % ranks == 0:
        return None
    return (
        f"batch.micro is {micro}, but {ranks} ranks along the axes of {_SPLIT} "
        f"{parallelism.tensor_split} divide its sequences"
    )


TENSOR_SPLIT_RULES += [
    requires(
        "E931",
        _SPLIT,
        needs={
            "parallelism.sequence_parallel": False,
            "parallelism.scatter_gather": False,
            "parallelism.context": 1,
            "parallelism.sequence_slices": 1,
            "recompute.distribute": False,
            "precision.compute": ("bf16", "fp16", "fp32"),
            "model.experts": None,
            "model.latent_attention": None,
            "model.layer_pattern": None,
            "model.lora": None,
            "model.mtp_num_layers": 0,
            "overlap.userbuffers": False,
            "software.separate_projections": False,
        },
        why="activations are already divided by tokens or channels, and other ways to divide "
        "them, experts, adapters, other layers, narrow types and token prediction are not "
        "simulated with a split of the matrices",
        example="parallelism: {tensor: 4, tensor_split: hidden, sequence_parallel: true}",
    ),
]
