"""Small layers with experts, and their ops."""

from collections import Counter
from typing import Any

from simtrain.scenario import Scenario
from simtrain.workload.ops import Op
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, CollectiveKind, GroupedGemm
from tests.helpers.toys import plan_of, scenario_with

HIDDEN, FFN, SEQ, HEADS, EXPERTS, TOP_K = 64, 96, 32, 8, 8, 2


def moe(
    experts: dict[str, Any] | None = None, grid: dict[str, Any] | None = None, **more: Any
) -> Scenario:
    """Return a small layer with eight experts, two per token."""
    grid = {"tensor": 1, "data": 8, "expert": 4} | (grid or {})
    if grid["tensor"] > 1:
        grid.setdefault("sequence_parallel", True)
    batch = {"micro": 2, "global": 2 * grid["data"]}
    model = {
        "num_layers": 1,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "seq_length": SEQ,
        "vocab_size": 1024,
        "biases": False,
        "activation": "swiglu",
        "hidden_dropout": 0,
        "attention_dropout": 0,
        "experts": {"num": EXPERTS, "top_k": TOP_K, "ffn_hidden_size": FFN} | (experts or {}),
    } | more.pop("model", {})
    return scenario_with(model, batch=batch, parallelism=grid, **more)


def layer(scenario: Scenario, kind: Any = "F") -> list[Op]:
    return [*record_pass(plan_of(scenario).layers_pass(1, kind)).ops]


def sent(scenario: Scenario, kind: Any = "F") -> Counter[tuple[CollectiveKind, int, int]]:
    """Return the collectives of a layer by kind, bytes and ranks."""
    works = [op.work for op in layer(scenario, kind)]
    found = [one for one in works if isinstance(one, Collective)]
    return Counter((one.kind, one.array_bytes, one.group.num_ranks) for one in found)


TOKENS = 2 * SEQ


def is_grouped(op: Op) -> bool:
    return isinstance(op.work, GroupedGemm)
