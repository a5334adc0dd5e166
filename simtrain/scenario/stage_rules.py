"""What Megatron-LM refuses of how layers are placed on stages and chunks, and what it accepts.

Sources: transformer_config.py (uneven pipelines) and transformer_block.get_num_layers_to_build.
Two things that they let pass are refused here: a chunk without a layer, whose output is its input
and cannot be freed once it is sent, and numbers of two stages that do not add up to the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from math import gcd

from simtrain.scenario.nearest import Fix, divisors, leaving_multiples, multiples
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering

STAGE_RULES: list[Rule] = []
_rule = registering(STAGE_RULES)

_OWN_LAYERS = ("first_stage_layers", "last_stage_layers")


def written_stage_layers(scenario: Scenario) -> dict[str, int]:
    """The stages' own numbers of layers as they are written, by field."""
    values = ((name, getattr(scenario.parallelism, name)) for name in _OWN_LAYERS)
    return {f"parallelism.{name}": value for name, value in values if value is not None}


def numbers_of_stages(scenario: Scenario, at_least: int = 1) -> Iterable[Fix]:
    """Numbers of stages over which the layers divide, the nearest first."""
    own = written_stage_layers(scenario).values()
    rest = scenario.model.num_layers - sum(own)
    if rest == 0:
        return [Fix("parallelism.pipeline", len(own))]
    stages = scenario.parallelism.pipeline
    return divisors("parallelism.pipeline", stages, max(1, rest), at_least, beyond=len(own))


def numbers_of_chunks(scenario: Scenario) -> Iterator[Fix]:
    """Numbers of chunks, from 2 up, into which every stage's layers divide."""
    layers = gcd(*scenario.stage_sizes)
    return divisors("parallelism.interleave", 1, max(2, layers), at_least=2)


@_rule("E305", "stages without a number of their own share the layers evenly, in whole chunks")
def _layers_split_by_chunks(scenario: Scenario) -> Violation | None:
    if not scenario.own_stage_layers:
        return _split_of_all(scenario)
    left, rest = (
        _left(scenario),
        scenario.model.num_layers - sum(scenario.own_stage_layers.values()),
    )
    if left == 0:
        return _sum_of_both(scenario) if rest else None
    chunks = scenario.parallelism.interleave
    if rest > 0 and rest % (left * chunks) == 0:
        return None
    own = written_stage_layers(scenario)
    return Violation(
        (*own, "model.num_layers", "parallelism.pipeline", "parallelism.interleave"),
        f"model.num_layers ({scenario.model.num_layers}) less {_sum_in_words(own)} leaves {rest} "
        f"to {left} stage{'s' * (left > 1)}, not a positive multiple of these stages x "
        f"parallelism.interleave ({left} x {chunks} = {left * chunks})",
        (
            *(_own_numbers(scenario, field) for field in own),
            multiples(
                "model.num_layers",
                scenario.model.num_layers,
                left * chunks,
                beyond=sum(own.values()),
            ),
            numbers_of_stages(scenario, at_least=2),
            divisors("parallelism.interleave", chunks, max(1, rest)),
        ),
    )


def _split_of_all(scenario: Scenario) -> Violation | None:
    parallelism, layers = scenario.parallelism, scenario.model.num_layers
    stages, chunks = parallelism.pipeline, parallelism.interleave
    if layers % (stages * chunks) == 0:
        return None
    return Violation(
        ("model.num_layers", "parallelism.pipeline", "parallelism.interleave"),
        f"model.num_layers is {layers}, not a multiple of parallelism.pipeline x interleave "
        f"({stages} x {chunks} = {stages * chunks})",
        (
            multiples("model.num_layers", layers, stages * chunks),
            divisors("parallelism.pipeline", stages, layers),
            divisors("parallelism.interleave", chunks, layers),
        ),
    )


def _sum_of_both(scenario: Scenario) -> Violation:
    own = written_stage_layers(scenario)
    return Violation(
        (*own, "model.num_layers", "parallelism.pipeline"),
        f"{_sum_in_words(own)}, but model.num_layers is {scenario.model.num_layers} and there is "
        "no other stage",
        (
            *(_own_numbers(scenario, field) for field in own),
            [Fix("model.num_layers", sum(own.values()))],
            numbers_of_stages(scenario, at_least=2),
        ),
    )


def _own_numbers(scenario: Scenario, field: str) -> Iterator[Fix]:
    """Numbers for one of the ends that leave the other stages an even rest; at last, none."""
    own = written_stage_layers(scenario)
    available = scenario.model.num_layers - sum(own.values()) + own[field]
    if step := _left(scenario) * scenario.parallelism.interleave:
        yield from leaving_multiples(field, own[field], step, available)
    else:
        yield Fix(field, available)
    yield Fix(field, None)


def _left(scenario: Scenario) -> int:
    """Stages without a number of their own."""
    return scenario.parallelism.pipeline - len(scenario.own_stage_layers)


def _sum_in_words(own: dict[str, int]) -> str:
    numbers = " + ".join(map(str, own.values()))
    total = f"{numbers} = {sum(own.values())}" if len(own) > 1 else numbers
    return f"{' + '.join(own)} ({total})"


@_rule("E327", "a pipeline of one stage has all layers on it")
def _own_layers_need_pipeline(scenario: Scenario) -> Violation | None:
    own = written_stage_layers(scenario)
    if not own or scenario.parallelism.pipeline > 1:
        return None
    return Violation(
        (*own, "parallelism.pipeline"),
        f"{' and '.join(own)} {'is' if len(own) == 1 else 'are'} set while parallelism.pipeline "
        f"is {scenario.parallelism.pipeline}",
        (
            *([Fix(field, None)] for field in own),
            numbers_of_stages(scenario, at_least=2),
        ),
    )


@_rule("E328", "the layers of a stage are divided evenly over its chunks")
def _own_layers_split_by_chunks(scenario: Scenario) -> Violation | None:
    chunks = scenario.parallelism.interleave
    own = written_stage_layers(scenario) if scenario.own_stage_layers else {}
    uneven = {field: layers for field, layers in own.items() if layers % chunks}
    if not uneven:
        return None
    return Violation(
        (*uneven, "parallelism.interleave"),
        f"{' and '.join(f'{field} ({layers})' for field, layers in uneven.items())} "
        f"{'is' if len(uneven) == 1 else 'are'} not a multiple of parallelism.interleave "
        f"({chunks})",
        (
            *(_whole_chunks(scenario, field) for field in uneven),
            divisors("parallelism.interleave", chunks, gcd(*own.values())),
        ),
    )


def _whole_chunks(scenario: Scenario, field: str) -> Iterable[Fix]:
    """Numbers in whole chunks, those first that leave the other stages an even rest."""
    layers, chunks = written_stage_layers(scenario)[field], scenario.parallelism.interleave
    *leaving_even, none = _own_numbers(scenario, field)
    return dict.fromkeys(chain(leaving_even, multiples(field, layers, chunks), [none]))
