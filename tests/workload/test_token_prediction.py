"""Multi-token prediction: parameters, FLOPs, bytes and communication counted by hand."""

from fractions import Fraction
from typing import Any

import pytest

from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.passes import record_pass
from tests.helpers.toys import plan_of, scenario_with

H, A, S, B, V, FFN = 64, 4, 32, 2, 512, 160
TOKENS = S * B
LAYER = H * 3 * H + H * H + 3 * H * FFN
MODEL = {
    "num_layers": 4,
    "hidden_size": H,
    "num_attention_heads": A,
    "seq_length": S,
    "ffn_hidden_size": FFN,
    "vocab_size": V,
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0,
    "tied_embeddings": False,
}


def predicting(modules: int, recompute: Any = "none", **sections: Any) -> Scenario:
    """Return four layers followed by `modules` prediction modules."""
    model = MODEL | sections.pop("model", {}) | {"mtp_num_layers": modules}
    sequences = sections.pop("batch_global", 4 * B)
    return scenario_with(
        model,
        batch={"micro": B, "global": sequences},
        attention_backend="fused",
        recompute=recompute,
        **sections,
    )


def split(t: int, p: int, **more: Any) -> dict[str, Any]:
    return {"tensor": t, "sequence_parallel": t > 1, "pipeline": p, **more}


def last_ops(plan: Plan, kind: Any) -> list[Op]:
    return [*record_pass(plan.chunk_pass(plan.chunks[-1], kind, saves_all=False)).ops]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("t", "p"), [(1, 1), (2, 1), (2, 4)])
@pytest.mark.parametrize("modules", [1, 2])
def test_parameters_by_hand(modules: int, t: int, p: int, tied: bool) -> None:
    """A module has a layer, a projection from 2 h to h, two norms before it and one at the end. It
    has no table.
    """
    sections = {"parallelism": split(t, p), "model": {"tied_embeddings": tied}}
    plain, plan = (plan_of(predicting(number, **sections)) for number in (0, modules))
    module = Fraction(LAYER + 2 * H * H, t) + 2 * H + 3 * H
    # The last stage already has the embedding's table if it is also the first stage or if tables
    # are tied.
    table = 0 if p == 1 or tied else Fraction(V * H, t)
    before, after = plain.stage_parameters[-1], plan.stage_parameters[-1]
    assert after.total - before.total == modules * module + table
    assert after.partial_sums - before.partial_sums == modules * 5 * H
    assert plan.stage_parameters[0].tied == after.tied == Fraction(V * H, t)
    whole = modules * (LAYER + 2 * H * H + 5 * H)
    assert plan.num_parameters - plain.num_parameters == whole


@pytest.mark.parametrize("t", [1, 2])
def test_flops_by_hand(t: int) -> None:
    """A module adds its layer, its projection, and another output layer."""
    one, more = (plan_of(predicting(number, parallelism=split(t, 2))) for number in (0, 2))
    products = 2 * TOKENS * (LAYER + 2 * H * H + V * H)
    scores = 2 * TOKENS * S * H
    added = {
        kind: total_flops(last_ops(more, kind)) - total_flops(last_ops(one, kind)) for kind in "FB"
    }
    assert added["F"] == 2 * Fraction(products + scores, t)
    assert added["B"] == 2 * Fraction(2 * products + Fraction(5, 2) * scores, t)


def test_full_recompute_keeps_the_inputs_of_a_module() -> None:
    """It also saves the module's output in the joined states, and the fp32 logits of its loss."""

    def left(modules: int, recompute: Any) -> int:
        plan = plan_of(predicting(modules, recompute))
        return pass_memory(plan.chunk_pass(plan.chunks[-1], "F", saves_all=False)).remaining_bytes

    logits = 4 * TOKENS * V
    embedding = hidden = output = 2 * TOKENS * H
    assert left(2, "full") - left(0, "full") == 2 * (embedding + hidden + output + logits)
    # Block recompute does not recompute modules.
    block = {"strategy": "full", "method": "block", "num_layers": 4}
    assert left(2, block) - left(0, block) == left(2, "none") - left(0, "none")
    scores = 4 * A * TOKENS
    kept = left(2, "none") - left(2, "selective")
    assert kept == (4 + 2) * scores
    for recompute in ("none", "selective", "full"):
        plan = plan_of(predicting(2, recompute))
        assert (
            pass_memory(plan.chunk_pass(plan.chunks[-1], "B", saves_all=False)).remaining_bytes == 0
        )
