"""Rules of the placement of layers on pipeline stages and chunks.

Sources: transformer_config.py (uneven pipelines) and transformer_block.get_num_layers_to_build.
Two rules go beyond Megatron-LM: they refuse a chunk without layers (its output is its input, which
cannot be freed after the send), and two stages whose layers do not add up to the model's.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.rule import Rules, are, at_least, requires
from simtrain.scenario.schema import Scenario

STAGE_RULES = Rules()
rule = STAGE_RULES.rule


def written_layers(scenario: Scenario) -> dict[str, int]:
    """Return first_stage_layers and last_stage_layers by field, if set."""
    names = ("first_stage_layers", "last_stage_layers")
    values = ((name, getattr(scenario.parallelism, name)) for name in names)
    return {f"parallelism.{name}": value for name, value in values if value is not None}


def _own_layers(scenario: Scenario) -> dict[str, int]:
    """As `written_layers`, but empty for a single stage, which holds all layers."""
    return written_layers(scenario) if scenario.parallelism.pipeline > 1 else {}


def numbers_of_chunks(scenario: Scenario) -> Iterable[int]:
    """Numbers of chunks, from 2 up, that divide the layers of every stage."""
    return near_divisors(1, max(2, gcd(*scenario.stage_sizes)), at_least=2)


@rule(
    "E305",
    "without a layout, all chunks have equally many layers, except on a stage with "
    "first_stage_layers or last_stage_layers",
    "parallelism: {pipeline: 5}",
)
def _layers_split_by_chunks(scenario: Scenario) -> str | None:
    split, layers, written = scenario.parallelism, scenario.model.num_layers, _own_layers(scenario)
    if split.layout is not None:
        return None
    stages, rest = split.pipeline - len(written), layers - sum(written.values())
    chunks = stages * split.interleave
    if (rest > 0 and rest % chunks == 0) if stages else rest == 0:
        return None
    product = f"({stages} x {split.interleave} = {chunks})"
    if stages == 0:
        return (
            f"{_sum_in_words(written)}, but model.num_layers is {layers} and there are no other "
            "stages"
        )
    if written:
        return (
            f"{_sum_in_words(written)} of model.num_layers ({layers}) leaves {rest} for {stages} "
            f"stage{'s' * (stages > 1)}, not a positive multiple of these stages x "
            f"parallelism.interleave {product}"
        )
    return (
        f"model.num_layers is {layers}, not a multiple of parallelism.pipeline x interleave "
        f"{product}"
    )


def _sum_in_words(written: dict[str, int]) -> str:
    numbers = " + ".join(map(str, written.values()))
    total = f"{numbers} = {sum(written.values())}" if len(written) > 1 else numbers
    return f"{' + '.join(written)} ({total})"


STAGE_RULES += [
    requires(
        "E327",
        ("parallelism.first_stage_layers", "parallelism.last_stage_layers"),
        needs={"parallelism.pipeline": at_least(2)},
        why="a single pipeline stage holds all layers",
        example="parallelism: {last_stage_layers: 12}",
    ),
]


@rule(
    "E328",
    "all chunks of a stage have equally many layers",
    "model: {num_layers: 49}\nparallelism: {pipeline: 4, interleave: 3, last_stage_layers: 13}",
)
def _own_layers_split_by_chunks(scenario: Scenario) -> str | None:
    written, chunks = _own_layers(scenario), scenario.parallelism.interleave
    uneven = {field: layers for field, layers in written.items() if layers % chunks}
    if not uneven:
        return None
    return (
        f"{are(f'{field} ({layers})' for field, layers in uneven.items())} not a multiple of "
        f"parallelism.interleave ({chunks})"
    )
