"""Rules of packed sequences (batch.packed_lengths).

Sources: Megatron-Bridge (packed sequences need one sequence a microbatch; pad_seq_to_mult);
Transformer Engine's DotProductAttention and context_parallel.py for the THD format.
"""

from __future__ import annotations

from simtrain.scenario.rule import Rules, against, excludes, requires
from simtrain.scenario.schema import Scenario

_PACKED = "batch.packed_lengths"


def _unit(scenario: Scenario) -> int:
    """Return the number of slices into which context-parallel ranks cut each document."""
    return 2 * scenario.parallelism.context


def _has_other_kernel(scenario: Scenario) -> bool:
    split = scenario.parallelism
    exchanges = split.context > 1 and not split.context_exchange.takes_documents
    is_other = scenario.attention_backend != "fused" or exchanges or split.sequence_slices > 1
    return is_other or scenario.model.layer_pattern is not None


def _uneven_documents(scenario: Scenario) -> bool:
    if scenario.parallelism.context == 1 or _has_other_kernel(scenario):
        return False
    return any(length % _unit(scenario) for length, _ in scenario.documents)


PACKING_RULES = Rules()
PACKING_RULES += [
    requires(
        "E410",
        "batch.micro",
        needs={_PACKED: None},
        off=1,
        why="a microbatch in the THD format is one packed sequence, which Megatron-Bridge requires",
        example="batch: {micro: 2, global: 8, packed_lengths: [512]}\nattention_backend: fused",
    ),
    excludes(
        "E419",
        _PACKED,
        "attention has no kernel for variable lengths",
        _has_other_kernel,
        reads=(
            "attention_backend",
            "parallelism.context_communication",
            "parallelism.sequence_slices",
            "model.layer_pattern",
        ),
        off=None,
        why="attention within documents needs a fused kernel for variable lengths; with context "
        "parallelism it is simulated with p2p only, and not with slices of sequences or in "
        "hybrid models",
        example="batch: {micro: 1, packed_lengths: [512]}\nattention_backend: unfused",
        first=(
            "attention_backend",
            "parallelism.context_communication",
            "parallelism.sequence_slices",
            "model.layer_pattern",
        ),
    ),
    against(
        "E420",
        _uneven_documents,
        "batch.packed_lengths gives documents whose lengths are not multiples of 2 x "
        "parallelism.context",
        why="each context-parallel rank holds two slices of every document, which must be padded "
        "to a multiple of 2 x parallelism.context (pad_seq_to_mult)",
        example="batch: {micro: 1, packed_lengths: [500]}\nparallelism: {context: 4}\n"
        "attention_backend: fused",
    ),
]
