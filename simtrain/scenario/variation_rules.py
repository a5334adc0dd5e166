"""Rules of the section `variation`."""

from __future__ import annotations

from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, Rule, Violation, registering, rule_against

VARIATION_RULES: list[Rule] = []

_rule = registering(VARIATION_RULES)
_LENGTHS = "variation.sequence_lengths"


@_rule(
    "E961",
    "ranks are counted from 0",
    what="variation.slow names a rank that the scenario does not have.",
    fix="Write a rank below the number of GPUs.",
    example="variation: {slow: {rank: 64, factor: 1.2}}",
)
def _slow_rank_exists(scenario: Scenario) -> Violation | None:
    slow = scenario.variation.slow
    if slow is None or slow.rank < scenario.num_gpus:
        return None
    last = scenario.num_gpus - 1
    message = f"variation.slow.rank is {slow.rank}, but the last rank is {last}"
    return Violation(message, {"variation.slow.rank": [last, 0]})


def _packs_lengths_twice(scenario: Scenario) -> bool:
    return bool(scenario.variation.sequence_lengths and scenario.batch.packed_lengths)


def _has_no_kernel(scenario: Scenario) -> bool:
    model, split = scenario.model, scenario.parallelism
    return scenario.variation.sequence_lengths is not None and (
        scenario.attention_backend != "fused"
        or scenario.batch.micro > 1
        or split.context > 1
        or split.sequence_slices > 1
        or model.layer_pattern is not None
        or model.attention_window is not None
    )


VARIATION_RULES += [
    rule_against(
        "E963",
        "documents have either the same lengths in every sequence, or lengths that are drawn",
        {_LENGTHS: [LEFT_OUT], "batch.packed_lengths": [LEFT_OUT]},
        _packs_lengths_twice,
        "variation.sequence_lengths draws documents that batch.packed_lengths sets",
        (_LENGTHS, "batch.packed_lengths"),
        what="variation.sequence_lengths and batch.packed_lengths are both set.",
        fix="Remove one of them.",
        example=(
            "batch: {micro: 1, packed_lengths: [512]}\nattention_backend: fused\n"
            "variation: {sequence_lengths: {mean: 500}}"
        ),
    ),
    rule_against(
        "E964",
        "attention within documents of uneven length is simulated with fused attention over whole "
        "sequences, one a microbatch, on one context-parallel rank",
        {
            _LENGTHS: [LEFT_OUT],
            "attention_backend": ["fused"],
            "batch.micro": [1],
            "parallelism.context": [1],
            "parallelism.sequence_slices": [LEFT_OUT],
            "model.attention_window": [LEFT_OUT],
            "model.layer_pattern": [LEFT_OUT],
        },
        _has_no_kernel,
        "variation.sequence_lengths is set while attention has no kernel for documents of uneven "
        "length",
        (_LENGTHS, "attention_backend"),
        what="variation.sequence_lengths is set while attention has no kernel for such documents.",
        fix=(
            "Set attention_backend: fused, batch.micro: 1 and parallelism.context: 1, without "
            "slices, windows and Mamba layers; or remove variation.sequence_lengths."
        ),
        example="attention_backend: unfused\nvariation: {sequence_lengths: {mean: 500}}",
    ),
]
