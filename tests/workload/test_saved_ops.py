"""Recompute by op: what a layer keeps and runs again, by hand, by laws and against PyTorch."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario, check_scenario
from simtrain.scenario.section import OP_KINDS
from simtrain.workload.ops import Op, Phase, total_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.segments import layer_tensors
from simtrain.workload.tape import record
from tests.helpers.layers import layers
from tests.helpers.toys import plan_of, scenario_with

S, B, H, HEADS, GROUPS, FFN = 64, 2, 32, 4, 2, 48
CHANNELS = H // HEADS
LLAMA = {
    "num_layers": 1,
    "hidden_size": H,
    "num_attention_heads": HEADS,
    "num_query_groups": GROUPS,
    "ffn_hidden_size": FFN,
    "seq_length": S,
    "vocab_size": 128,
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
TOKENS, KV, LOG_SUM_EXP = S * B, GROUPS * CHANNELS, 4 * S * B * HEADS


def llama(stack: str = "torchtitan_compiled", **sections: Any) -> Scenario:
    return scenario_with(
        LLAMA, batch={"micro": B, "global": B}, software={"stack": stack}, **sections
    )


def saving(scenario: Scenario, *ops: str) -> Scenario:
    return scenario.replace({"recompute": {"saved_ops": list(ops)}})


def kept_bytes(scenario: Scenario) -> int:
    return pass_memory(plan_of(scenario).layers_pass(1, "F")).remaining_bytes


def ops_of(scenario: Scenario, kind: Any) -> list[Op]:
    return [*record_pass(plan_of(scenario).layers_pass(1, kind)).ops]


def again(scenario: Scenario, kind: Any = "B") -> list[Op]:
    return [op for op in ops_of(scenario, kind) if op.phase is Phase.RECOMPUTE]


def remaining_bytes(scenario: Scenario, kinds: str) -> int:
    memories = [pass_memory(plan_of(scenario).layers_pass(1, kind)) for kind in kinds]  # type: ignore[arg-type]
    return memories[-1].remaining_bytes


def test_torchtitans_list_keeps_every_second_product_and_attention() -> None:
    scenario = llama().replace({"recompute": "ops"})
    # Input, queries (1st product), values (3rd), gate (5th), attention; down (7th) is not read.
    kept = 2 * TOKENS * (H + H + KV + FFN + H) + LOG_SUM_EXP
    assert kept_bytes(scenario) == kept
    products = [op.name for op in again(scenario) if op.name in ("key", "projection", "up")]
    assert products == ["key", "projection", "up"]
    assert not {"query", "value", "gate", "down", "fused attention"} & {
        op.name for op in again(scenario)
    }


def test_eager_checkpoints_also_keep_outputs_that_nothing_reads() -> None:
    compiled, eager = (
        llama(stack).replace({"recompute": "ops"})
        for stack in ("torchtitan_compiled", "torchtitan")
    )
    assert kept_bytes(eager) - kept_bytes(compiled) == 2 * TOKENS * H  # the product "down"
    assert remaining_bytes(eager, "B") == remaining_bytes(compiled, "B") == 0


def test_a_layer_that_saves_no_op_keeps_its_input() -> None:
    scenario = saving(llama())
    assert kept_bytes(scenario) == 2 * TOKENS * H
    full = scenario.replace({"recompute": "full"})
    assert kept_bytes(full) == kept_bytes(scenario)
    # Nothing reads the output of the last product: recompute stops before it, in both.
    assert [op.work for op in again(full)] == [op.work for op in again(scenario)]
    assert remaining_bytes(full, "B") == 0


@pytest.mark.parametrize("layers", [1, 2])
def test_full_recompute_stops_before_the_last_product_of_its_unit(layers: int) -> None:
    """Layers that are recomputed together need all outputs but the last one's."""
    counts = {}
    for stack in ("torchtitan", "eager"):
        scenario = llama(stack).replace(
            {"recompute": {"strategy": "full", "num_layers": layers}, "model.num_layers": 2}
        )
        memory = pass_memory(plan_of(scenario).layers_pass(2, "B"))
        assert memory.remaining_bytes == 0
        works = [*record_pass(plan_of(scenario).layers_pass(2, "B")).ops]
        names = [op.name for op in works if op.phase is Phase.RECOMPUTE]
        counts[stack] = [names.count(name) for name in ("projection", "down", "MLP sum")]
    assert counts == {"torchtitan": [2, 2 - 2 // layers, 2 - 2 // layers], "eager": [2, 2, 2]}


@settings(max_examples=25)
@given(st.data(), layers())
def test_any_set_of_ops_runs_the_same_backward_pass_and_leaves_nothing(
    data: st.DataObject, scenario: Scenario
) -> None:
    scenario = scenario.replace({"recompute": "none", "software": "torchtitan_compiled"})
    blocks = [block for block, _ in plan_of(scenario).model.runs if block.is_unit]
    layers = [layer_tensors(record(block, plan_of(scenario).microbatch)) for block in blocks]
    words = sorted(frozenset(chain.from_iterable(chain(*layer.names) for layer in layers)))
    some = saving(scenario, *data.draw(st.sets(st.sampled_from([*words, *OP_KINDS]))))
    check_scenario(some)
    assert remaining_bytes(some, "B") == 0
    assert remaining_bytes(some, "IW") == 0
    forward, back = ops_of(some, "F"), ops_of(some, "B")
    assert total_flops(again(some)) <= total_flops(forward)
    not_again = [op for op in back if op.phase is not Phase.RECOMPUTE]
    assert total_flops(not_again) == total_flops(ops_of(scenario, "B"))


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"(?s)no op of a layer is called 'gat'.*write 'gate'"
    ) as error:
        plan_of(saving(llama(), "gat"))
    assert error.value.problems[0].code == "E509"
