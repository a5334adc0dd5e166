"""Rules of packed sequences (batch.packed_lengths).

Sources: Megatron-Bridge (packed sequences need one sequence a microbatch; pad_seq_to_mult);
Transformer Engine's DotProductAttention and context_parallel.py for the THD format.
"""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.scenario.allowed_values import one_of
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, Rule, rule_against

_PACKED = "batch.packed_lengths"
_REMOVED = one_of(None, near=(LEFT_OUT,))


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


def _padded_lengths(scenario: Scenario) -> Iterable[object]:
    lengths, unit = scenario.batch.packed_lengths or (), _unit(scenario)
    yield [-(-length // unit) * unit for length in lengths]


PACKING_RULES: list[Rule] = [
    Requires(
        "E410",
        "batch.micro",
        needs={_PACKED: _REMOVED},
        off=1,
        why=(
            "a microbatch in the THD format is one packed sequence, which Megatron-Bridge requires"
        ),
        example="batch: {micro: 2, global: 8, packed_lengths: [512]}\nattention_backend: fused",
    ),
    Excludes(
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
        off=_REMOVED,
        near={
            "attention_backend": ["fused"],
            "parallelism.context_communication": ["p2p"],
            "parallelism.sequence_slices": [LEFT_OUT],
            "model.layer_pattern": [LEFT_OUT],
        },
        near_first=True,
        why=(
            "attention within documents needs a fused kernel for variable lengths; with context "
            "parallelism it is simulated with p2p only, and not with slices of sequences or in "
            "hybrid models"
        ),
        example="batch: {micro: 1, packed_lengths: [512]}\nattention_backend: unfused",
    ),
    rule_against(
        "E420",
        "each context-parallel rank holds two slices of every document, which must be padded to a "
        "multiple of 2 x parallelism.context (pad_seq_to_mult)",
        {_PACKED: _padded_lengths, "parallelism.context": [1]},
        _uneven_documents,
        "batch.packed_lengths gives documents whose lengths are not multiples of 2 x "
        "parallelism.context",
        (_PACKED, "parallelism.context"),
        what="Context-parallel ranks cannot cut the documents evenly.",
        fix="Write lengths that are multiples of 2 x parallelism.context.",
        example=(
            "batch: {micro: 1, packed_lengths: [500]}\nparallelism: {context: 4}\n"
            "attention_backend: fused"
        ),
    ),
]
