"""Laws of layers with experts, and combinations that the framework refuses."""

from typing import Any

import pytest

from simtrain.durations.model import DurationModel
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.workload.chunk import parameters
from simtrain.workload.gpt import TransformerLayer, gpt_blocks
from simtrain.workload.ops import Op
from simtrain.workload.record import record_pass
from simtrain.workload.work import Gemm
from tests.helpers.expert_models import FFN, HIDDEN, TOKENS, layer, moe, sent
from tests.helpers.toys import a100, plan_of, scenario_with


def products(ops: list[Op], *names: str) -> list[Any]:
    return [op.work for op in ops if op.name.startswith(names)]


def test_one_expert_has_the_same_products_as_a_dense_layer() -> None:
    one = moe({"num": 1, "top_k": 1}, {"expert": 1, "data": 8})
    dense = scenario_with(
        {**one.model.model_dump(exclude={"experts"}), "ffn_hidden_size": FFN},
        batch={"micro": 2, "global": 16},
        parallelism={"data": 8},
    )
    model = DurationModel(a100())
    for kind in ("F", "B"):
        grouped = products(layer(one, kind), "experts up", "experts down")
        plain = products(layer(dense, kind), "gate and up", "down")
        assert len(grouped) == len(plain) == (2 if kind == "F" else 4)
        for mine, other in zip(grouped, plain, strict=True):
            assert isinstance(other, Gemm)
            assert mine.product == other
            assert mine.flops == other.flops
            assert model.seconds(mine) == model.seconds(other)


def loads_of(scenario: Scenario) -> list[float]:
    """Return the imbalance of each layer."""
    return [
        block.experts.imbalance
        for block in gpt_blocks(scenario).blocks
        if isinstance(block, TransformerLayer) and block.experts
    ]


def loads(**experts: Any) -> list[float]:
    """Return the imbalance of each layer of a model of 1,000 layers on 8 expert-parallel ranks."""
    grid = {"expert": 8, "data": 8}
    return loads_of(moe(experts | {"num": 8}, grid, model={"num_layers": 1000}))


def test_drawn_loads_of_layers_have_their_mean_and_at_most_all_tokens() -> None:
    """The mean of 1,000 draws of an exponential excess of 0.5 is off by 0.016 in the mean."""
    assert loads(imbalance=1.5) == [1.5] * 1000
    drawn = loads(imbalance=1.5, imbalance_seed=1)
    assert drawn == loads(imbalance=1.5, imbalance_seed=1) != loads(imbalance=1.5, imbalance_seed=2)
    assert sum(drawn) / 1000 == pytest.approx(1.5, abs=0.05)
    assert 1 <= min(drawn) < 1.01 and max(loads(imbalance=7.5, imbalance_seed=1)) == 8


def test_full_recompute_routes_and_exchanges_again() -> None:
    there = sent(moe(recompute="full"), "B")
    assert there == sent(moe(), "F") + sent(moe(), "B")
    memory = pass_memory(plan_of(moe(recompute="full")).layers_pass(1, "F"))
    assert memory.remaining_bytes == 2 * TOKENS * HIDDEN


SHARED = {"shared_ffn_hidden_size": 4096, "shared_gate": True}


def test_a_hidden_all_to_all_is_waited_for_after_the_shared_expert() -> None:
    beside = moe(SHARED, overlap={"shared_expert": True})
    plan = plan_of(beside)
    record = record_pass(plan.layers_pass(1, "F"))
    names = [op.name for op in record.ops]
    waits = {
        names[i]: [names[j] for j in some]
        for s in record.segments
        for i, some in enumerate(s.waits)
    }
    place = names.index("dispatch")
    assert names[place : place + 4] == [
        "dispatch",
        "probability dispatch",
        "shared expert up",
        "shared SwiGLU",
    ]
    assert waits["shared expert up"] == []
    assert waits["sort by expert"] == ["dispatch", "probability dispatch"]


def test_first_dense_layers_and_layer_frequency_place_experts() -> None:
    model = {"num_layers": 8, "ffn_hidden_size": 128}
    scenario = moe({"first_dense_layers": 3, "layer_frequency": 2}, model=model)
    plan = plan_of(scenario)
    blocks = [block for block in plan.model.blocks if block.is_unit]
    assert [block.experts is not None for block in blocks] == [  # type: ignore[attr-defined]
        *(False, False, False, False, True, False, True, False)
    ]
    own = parameters((plan.model,), plan.microbatch)
    assert own.experts == 2 * 2 * 3 * HIDDEN * FFN


# ---------------------------------------------------------------------------------------- rules
