"""Small spaces to search, and evaluations of all their layouts."""

import functools
import itertools
from pathlib import Path
from typing import Any

import yaml

from simtrain.base.strict_yaml import Positions
from simtrain.errors import Location
from simtrain.scenario import RULES, Scenario
from simtrain.scenario.section import Origin
from simtrain.schedules import default_name
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.exact_search import Explorer
from simtrain.studies.search.space import COORDINATES, Point, Prefix, Space

EVALUATOR = Evaluator()
MODEL = {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 512}


EXPERT_MODEL = {
    "biases": False,
    "experts": {"num": 4, "top_k": 2, "ffn_hidden_size": 512, "imbalance": 1.5},
}


def base(**sections: Any) -> Scenario:
    """Return a small model, with the values of some sections replaced."""
    data: dict[str, Any] = {"name": "small", "batch": {"micro": 1, "global": 4}}
    for name, values in ({"model": MODEL} | sections).items():
        data[name] = data.get(name, {}) | values if isinstance(values, dict) else values
    data["model"] = MODEL | data["model"]
    return Scenario.model_validate(data)


def holding(scenario: Scenario, *paths: tuple[str, ...]) -> Scenario:
    """Return the scenario as if --set had set these fields."""
    scenario._origin = Origin(Positions().moved(paths, Location("--set")))
    return scenario


def with_memory(name: str, num_bytes: int) -> Scenario:
    """Return a base on GPUs of this memory."""
    return BASES[name].replace({"hardware.gpu.memory_capacity": f"{num_bytes} B"})


BASES = {
    name: holding(
        base(**{key: value for key, value in sections.items() if key != "set"}),
        *(tuple(field.split(".")) for field in sections.get("set", ())),
    )
    for name, sections in yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text("utf-8")
    ).items()
}


def space(name: str = "plain", gpus: int = 4) -> Space:
    return Space(BASES[name], gpus)


def all_points(searched: Space) -> list[Point]:
    """Return all combinations of choices with every option of the base on, without rules."""
    return [*map(searched.point, all_prefixes(searched, len(COORDINATES)))]


def all_prefixes(searched: Space, length: int, start: Prefix = ()) -> list[Prefix]:
    """Return all combinations of choices of this length that begin with a prefix."""
    prefixes = [start]
    while len(prefixes[0]) < length:
        prefixes = [prefix + choice for prefix in prefixes for choice in searched.choices(prefix)]
    return prefixes


def legal_by_enumeration(searched: Space) -> list[Point]:
    """Return the legal points: of each combination, the one with the first legal options."""
    legal, length = [], len(COORDINATES) + len(searched.options)
    for start in all_prefixes(searched, len(COORDINATES)):
        points = map(searched.point, all_prefixes(searched, length, start))
        legal += [*itertools.islice((p for p in points if is_legal(searched.scenario(p))), 1)]
    return legal


def is_legal(scenario: Scenario) -> bool:
    return all(rule.check(scenario) is None for rule in RULES)


def broken(scenario: Scenario) -> list[str]:
    return [rule.code for rule in RULES if rule.check(scenario)]


def point(*dense: Any, context: int = 1, expert: int = 1, shared: int | None = None) -> Point:
    """Return a point with even stages and the default schedule. `dense` starts with tensor,
    pipeline, data and interleave; `shared` is `expert_tensor`.
    """
    split = *dense[:3], context, expert, shared
    return Point(*split, dense[3], None, None, None, default_name(dense[3]), *dense[4:])


@functools.cache
def every(name: str) -> tuple[Explorer, tuple[Point, ...]]:
    """Return all legal points of a space, and an explorer to evaluate them."""
    searched = space(name)
    explorer = Explorer(searched, EVALUATOR, limit_bytes=2**60)
    return explorer, tuple(legal_by_enumeration(searched))
