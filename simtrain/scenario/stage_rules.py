"""Rules of the placement of layers on pipeline stages and chunks.

Sources: transformer_config.py (uneven pipelines) and transformer_block.get_num_layers_to_build.
Two rules go beyond Megatron-LM: they refuse a chunk without layers (its output is its input, which
cannot be freed after the send), and two stages whose layers do not add up to the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from math import gcd

from simtrain.scenario.allowed_values import at_least
from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering

STAGE_RULES: list[Rule] = []
_rule = registering(STAGE_RULES)


def written_layers(scenario: Scenario) -> dict[str, int]:
    """Return first_stage_layers and last_stage_layers by field, if set."""
    names = ("first_stage_layers", "last_stage_layers")
    values = ((name, getattr(scenario.parallelism, name)) for name in names)
    return {f"parallelism.{name}": value for name, value in values if value is not None}


def _own_layers(scenario: Scenario) -> dict[str, int]:
    """As `written_layers`, but empty for a single stage, which holds all layers."""
    return written_layers(scenario) if scenario.parallelism.pipeline > 1 else {}


def numbers_of_stages(scenario: Scenario, at_least: int = 2) -> Iterable[int]:
    """Numbers of stages that divide the layers, the nearest first."""
    written = written_layers(scenario).values()
    rest = scenario.model.num_layers - sum(written)
    if rest == 0:
        return [len(written)]
    return near_divisors(scenario.parallelism.pipeline, max(1, rest), at_least, beyond=len(written))


def numbers_of_chunks(scenario: Scenario) -> Iterable[int]:
    """Numbers of chunks, from 2 up, that divide the layers of every stage."""
    return near_divisors(1, max(2, gcd(*scenario.stage_sizes)), at_least=2)


@_rule(
    "E305",
    "without a layout, all chunks have equally many layers, except on a stage with "
    "first_stage_layers or last_stage_layers",
    what="The chunks of the pipeline cannot have equally many layers.",
    fix=(
        "Change model.num_layers, parallelism.pipeline or parallelism.interleave, or set "
        "parallelism.first_stage_layers, last_stage_layers or layout."
    ),
    example="parallelism: {pipeline: 5}",
)
def _layers_split_by_chunks(scenario: Scenario) -> Violation | None:
    split, layers, written = scenario.parallelism, scenario.model.num_layers, _own_layers(scenario)
    if split.layout is not None:
        return None
    stages, rest = split.pipeline - len(written), layers - sum(written.values())
    chunks = stages * split.interleave
    if (rest > 0 and rest % chunks == 0) if stages else rest == 0:
        return None
    product = f"({stages} x {split.interleave} = {chunks})"
    if stages == 0:
        message = (
            f"{_sum_in_words(written)}, but model.num_layers is {layers} and there are no other "
            "stages"
        )
    elif written:
        message = (
            f"model.num_layers ({layers}) minus {_sum_in_words(written)} leaves {rest} for "
            f"{stages} stage{'s' * (stages > 1)}, not a positive multiple of these stages x "
            f"parallelism.interleave {product}"
        )
    else:
        message = (
            f"model.num_layers is {layers}, not a multiple of parallelism.pipeline x interleave "
            f"{product}"
        )
    values: dict[str, Iterable[object]] = {
        field: _own_numbers(scenario, field) for field in written
    }
    total = layers - rest
    values["model.num_layers"] = near_multiples(layers, chunks, total) if stages else [total]
    values["parallelism.pipeline"] = (
        numbers_of_stages(scenario) if written else near_divisors(stages, layers)
    )
    if stages:
        values["parallelism.interleave"] = near_divisors(split.interleave, max(1, rest))
    return Violation(message, values)


def _own_numbers(scenario: Scenario, field: str) -> Iterator[int | None]:
    """Yield layers of one end that leave an equal share for the other stages; finally, None."""
    split, written = scenario.parallelism, written_layers(scenario)
    available = scenario.model.num_layers - sum(written.values()) + written[field]
    if step := (split.pipeline - len(written)) * split.interleave:
        yield from near_multiples(written[field], -step, start=available)
    else:
        yield available
    yield None


def _sum_in_words(written: dict[str, int]) -> str:
    numbers = " + ".join(map(str, written.values()))
    total = f"{numbers} = {sum(written.values())}" if len(written) > 1 else numbers
    return f"{' + '.join(written)} ({total})"


STAGE_RULES += [
    Requires(
        "E327",
        ("parallelism.first_stage_layers", "parallelism.last_stage_layers"),
        needs={"parallelism.pipeline": at_least(2, numbers_of_stages)},
        why="a single pipeline stage holds all layers",
        example="parallelism: {last_stage_layers: 12}",
    ),
]


@_rule(
    "E328",
    "all chunks of a stage have equally many layers",
    what="The layers of the first or last stage cannot be split evenly over its chunks.",
    fix=("Set first_stage_layers and last_stage_layers to multiples of parallelism.interleave."),
    example=(
        "model: {num_layers: 49}\nparallelism: {pipeline: 4, interleave: 3, last_stage_layers: 13}"
    ),
)
def _own_layers_split_by_chunks(scenario: Scenario) -> Violation | None:
    written, chunks = _own_layers(scenario), scenario.parallelism.interleave
    uneven = {field: layers for field, layers in written.items() if layers % chunks}
    if not uneven:
        return None
    values = {field: _whole_chunks(scenario, field) for field in uneven}
    return Violation(
        f"{are(f'{field} ({layers})' for field, layers in uneven.items())} not a multiple of "
        f"parallelism.interleave ({chunks})",
        values | {"parallelism.interleave": near_divisors(chunks, gcd(*written.values()))},
    )


def _whole_chunks(scenario: Scenario, field: str) -> Iterable[int | None]:
    """Return layers in whole chunks; first the numbers that leave equal shares for other stages."""
    layers, chunks = written_layers(scenario)[field], scenario.parallelism.interleave
    *leaving_even, none = _own_numbers(scenario, field)
    return dict.fromkeys(chain(leaving_even, near_multiples(layers, chunks), [none]))


def are(names: Iterable[str]) -> str:
    """Return the subject and verb of a sentence: "a is", "a and b are"."""
    names = tuple(names)
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"
