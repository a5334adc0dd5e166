"""Small spaces to search, and evaluations of all their layouts."""

import functools
import itertools
from typing import Any

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
    "narrow": holding(base(model={"num_layers": 8}), ("memory", "zero_stage")),
    "plain": base(),
    "uneven": base(
        model={"num_layers": 6, "tied_embeddings": False},
        parallelism={"pipeline": 4, "first_stage_layers": 2, "last_stage_layers": 2},
    ),
    "prime": holding(
        base(model={"num_layers": 7}, batch={"global": 8}),
        ("memory", "zero_stage"),
        ("parallelism", "sequence_parallel"),
    ),
    "overlapped": base(overlap={"pipeline": True, "data_parallel": True}, batch={"global": 8}),
    "defaults of megatron_core": holding(
        base(
            software="megatron_core",
            attention_backend="unfused",
            overlap={"data_parallel": True},
            batch={"global": 8},
        ),
        ("batch", "micro"),
    ),
    "gpipe": base(schedule="gpipe", precision={"compute": "fp16", "gradients": "fp16"}),
    "offloaded": base(memory={"offload_optimizer": True}, model={"vocab_size": 1004}),
    "states on the host": base(
        memory={
            "offload_optimizer": True,
            "offload_gradients": True,
            "offload_parameters": True,
            "delayed_update": True,
            "nvme": "optimizer",
        },
        overlap={"data_parallel": True},
        cluster="v100_dgx2",
    ),
    "experts": holding(
        base(
            model=EXPERT_MODEL,
            parallelism={"expert": 2},
            overlap={"data_parallel": True, "align_gradient_reduction": True},
        ),
        ("recompute",),
        ("batch", "micro"),
    ),
    "long": holding(
        base(
            model={"num_query_groups": 4},
            parallelism={"context": 2, "context_communication": "a2a"},
            overlap={"userbuffers": True},
            attention_backend="fused",
            cluster="h100_sxm",
        ),
        ("memory", "zero_stage"),
        ("batch", "micro"),
    ),
    "fp8": holding(
        base(
            model={"biases": False},
            precision={"compute": "fp8"},
            attention_backend="fused",
            software="megatron_core",
            cluster="h100_sxm",
        ),
        ("memory", "zero_stage"),
    ),
    "token prediction in a layout": holding(
        base(
            model={"mtp_num_layers": 1, "position_embedding": "rope"},
            parallelism={"pipeline": 2, "layout": "Ett|ttmL"},
        ),
        ("memory", "zero_stage"),
    ),
    "interleaved": holding(
        base(
            model={"num_layers": 8},
            parallelism={"pipeline": 2, "interleave": 2},
            schedule="interleaved",
            batch={"global": 16},
        ),
        ("memory", "zero_stage"),
    ),
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
