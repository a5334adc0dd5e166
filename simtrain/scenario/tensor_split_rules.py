"""Rules of splits of the layers' matrices (parallelism.tensor_split).

Sources: Colossal-AI's legacy layers (`divide` in nn/layer/utils, `check_sanity` of its process
groups); what simtrain does not simulate with a split, it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.scenario.allowed_values import one_of
from simtrain.scenario.nearest import near_multiples
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.tensor_splits import TENSOR_SPLITS
from simtrain.scenario.violation import LEFT_OUT, Rule, Violation, registering

TENSOR_SPLIT_RULES: list[Rule] = []
_rule = registering(TENSOR_SPLIT_RULES)
_SPLIT, _TENSOR = "parallelism.tensor_split", "parallelism.tensor"
_DEPTH = "parallelism.tensor_depth"
_WITH_DEPTH = [name for name, split in TENSOR_SPLITS.items() if split.has_depth]
_REMOVED = one_of(None, near=(LEFT_OUT,))
_MOST_RANKS = 4096


def _numbers_of_ranks(scenario: Scenario) -> Iterator[int]:
    """Yield numbers of ranks that form a grid, the nearest first."""
    split, number = scenario.parallelism.matrix_split, scenario.parallelism.tensor
    numbers = range(2, min(_MOST_RANKS, 4 * number + 8))
    near = sorted(numbers, key=lambda ranks: (abs(ranks - number), ranks))
    depth = scenario.parallelism.tensor_depth
    return (ranks for ranks in near if split and split.sizes(ranks, depth))


@_rule(
    "E935",
    "only a grid with layers has a depth, and its number of ranks does not tell it",
    what="parallelism.tensor_depth is set without a split that has layers of ranks, or left out.",
    fix=f"Set {_DEPTH} together with {_SPLIT} {' or '.join(_WITH_DEPTH)}, and only with it.",
    example="parallelism: {tensor: 4, tensor_split: 2d, tensor_depth: 2}\nbatch: {micro: 4}",
)
def _depth_is_of_the_split(scenario: Scenario) -> Violation | None:
    split, depth = scenario.parallelism.matrix_split, scenario.parallelism.tensor_depth
    has_depth = split is not None and split.has_depth
    if has_depth is (depth is not None):
        return None
    if has_depth:
        message = f"{_SPLIT} is {scenario.parallelism.tensor_split} without {_DEPTH}"
        return Violation(message, {_DEPTH: [1, 2], _SPLIT: [LEFT_OUT]}, (_SPLIT,))
    message = f"{_DEPTH} is {depth} while {_SPLIT} is {scenario.parallelism.tensor_split}"
    return Violation(message, {_DEPTH: [LEFT_OUT], _SPLIT: _WITH_DEPTH}, (_DEPTH, _SPLIT))


@_rule(
    "E930",
    "the tensor-parallel ranks form the grid of the split: "
    + "; ".join(f"{name} {split.ranks}" for name, split in TENSOR_SPLITS.items()),
    what="So many tensor-parallel ranks do not form the grid of parallelism.tensor_split.",
    fix="Change parallelism.tensor, or remove parallelism.tensor_split.",
    example="parallelism: {tensor: 1, tensor_split: hidden}",
)
def _ranks_form_a_grid(scenario: Scenario) -> Violation | None:
    parallelism, split = scenario.parallelism, scenario.parallelism.matrix_split
    if split is None or parallelism.grid_sizes or _depth_is_of_the_split(scenario):
        return None
    return Violation(
        f"{_TENSOR} is {parallelism.tensor}, but {_SPLIT} {split.name} needs {split.ranks} ranks",
        {_TENSOR: _numbers_of_ranks(scenario), _SPLIT: [LEFT_OUT]},
        (_TENSOR, _SPLIT),
    )


@_rule(
    "E932",
    "each rank has an equal part of the channels of every matrix and of the vocabulary",
    what="The ranks of a split cannot share a dimension of the matrices evenly.",
    fix=(
        "Set model.hidden_size, model.ffn_hidden_size and model.vocab_size to multiples of the "
        "number in the error message, or change parallelism.tensor."
    ),
    example=(
        "model: {hidden_size: 6146, num_attention_heads: 64, kv_channels: 96}\n"
        "parallelism: {tensor: 4, tensor_split: hidden}"
    ),
)
def _channels_are_divided(scenario: Scenario) -> Violation | None:
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
            return Violation(
                f"{field} is {size}, which {ranks} ranks along the axes of {_SPLIT} {split.name} "
                "cannot share",
                {field: near_multiples(size, ranks), _SPLIT: [LEFT_OUT]},
                (field, _TENSOR, _SPLIT),
            )
    return None


@_rule(
    "E933",
    "the ranks along one axis of the grid divide heads, and each has whole ones",
    what="The ranks of a split cannot share attention heads or query groups evenly.",
    fix=(
        "Set model.num_attention_heads and model.num_query_groups to multiples of the number in "
        "the error message, or change parallelism.tensor."
    ),
    example=(
        "model: {num_attention_heads: 15, hidden_size: 1920}\n"
        "parallelism: {tensor: 4, tensor_split: 2d}"
    ),
)
def _heads_are_divided(scenario: Scenario) -> Violation | None:
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
            return Violation(
                f"{field} is {number}, which {ranks} ranks along an axis of {_SPLIT} "
                f"{parallelism.tensor_split} cannot share",
                {field: near_multiples(number, ranks), _SPLIT: [LEFT_OUT]},
                (field, _TENSOR, _SPLIT),
            )
    return None


@_rule(
    "E934",
    "ranks along some axes of the grid divide the sequences of each microbatch",
    what="The ranks of a split cannot share the sequences of a microbatch evenly.",
    fix="Set batch.micro to a multiple of the number in the error message.",
    example="parallelism: {tensor: 4, tensor_split: 2d}\nbatch: {micro: 3, global: 12}",
)
def _sequences_are_divided(scenario: Scenario) -> Violation | None:
    parallelism, micro = scenario.parallelism, scenario.batch.micro
    ranks = parallelism.ranks_of_sequences
    if micro % ranks == 0:
        return None
    return Violation(
        f"batch.micro is {micro}, but {ranks} ranks along the axes of {_SPLIT} "
        f"{parallelism.tensor_split} divide its sequences",
        {"batch.micro": near_multiples(micro, ranks), _SPLIT: [LEFT_OUT]},
        ("batch.micro", _TENSOR, _SPLIT),
    )


TENSOR_SPLIT_RULES += [
    Requires(
        "E931",
        _SPLIT,
        needs={
            "parallelism.sequence_parallel": False,
            "parallelism.scatter_gather": False,
            "parallelism.context": 1,
            "parallelism.sequence_slices": 1,
            "recompute.distribute": False,
            "precision.compute": one_of("bf16", "fp16", "fp32", near=("bf16",)),
            "model.experts": _REMOVED,
            "model.latent_attention": _REMOVED,
            "model.layer_pattern": _REMOVED,
            "model.lora": _REMOVED,
            "model.mtp_num_layers": one_of(0, near=(LEFT_OUT,)),
            "overlap.userbuffers": False,
            "software.separate_projections": False,
        },
        why=(
            "activations are already divided by tokens or channels, and other ways to divide "
            "them, experts, adapters, other layers, narrow types and token prediction are not "
            "simulated with a split of the matrices"
        ),
        example="parallelism: {tensor: 4, tensor_split: hidden, sequence_parallel: true}",
    ),
]
