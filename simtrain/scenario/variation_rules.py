"""Rules of the section `variation`."""

from __future__ import annotations

from simtrain.scenario.rule import Rules, against
from simtrain.scenario.schema import Scenario

VARIATION_RULES = Rules()

rule = VARIATION_RULES.rule


@rule("E961", "ranks are counted from 0", "variation: {slow: {rank: 64, factor: 1.2}}")
def _slow_rank_exists(scenario: Scenario) -> str | None:
    slow = scenario.variation.slow
    if slow is None or slow.rank < scenario.num_gpus:
        return None
    last = scenario.num_gpus - 1
    message = f"variation.slow.rank is {slow.rank}, but the last rank is {last}"
    return message


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
    against(
        "E963",
        _packs_lengths_twice,
        "variation.sequence_lengths draws documents that batch.packed_lengths sets",
        why="documents have either the same lengths in every sequence, or lengths that are drawn",
        example="batch: {micro: 1, packed_lengths: [512]}\nattention_backend: fused\n"
        "variation: {sequence_lengths: {mean: 500}}",
    ),
    against(
        "E964",
        _has_no_kernel,
        "variation.sequence_lengths is set while attention has no kernel for documents of uneven "
        "length",
        why="attention within documents of uneven length is simulated with fused attention over "
        "whole sequences, one a microbatch, on one context-parallel rank",
        example="attention_backend: unfused\nvariation: {sequence_lengths: {mean: 500}}",
    ),
]
