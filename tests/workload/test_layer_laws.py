"""Any layer against closed forms of its sizes: parameters, FLOPs, saved bytes, communication."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings

from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, total_flops, total_model_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective
from tests.helpers.layers import CHOICES, LayerByHand, layers
from tests.helpers.toys import plan_of, scenario_with


def ops_of(scenario: Scenario, kind: Any) -> list[Op]:
    return [*record_pass(plan_of(scenario).layers_pass(1, kind)).ops]


@given(layers())
@settings(deadline=None)
def test_parameters_of_a_rank(scenario: Scenario) -> None:
    """Those of experts have replicas of their own. Whole ones have partial gradients."""
    one, plan = LayerByHand(scenario), plan_of(scenario)
    (stage,) = plan.stage_parameters
    assert stage.layers == one.parameters
    assert stage.experts == one.expert_weights
    if one.experts:
        replicas = scenario.num_gpus // (one.split.expert * one.split.ranks_of_expert)
        assert plan.step_options.expert_data
        assert plan.step_options.expert_data.num_ranks == replicas
    final = (2 if scenario.model.normalization == "layer_norm" else 1) * scenario.model.hidden_size
    positions = scenario.model.position_embedding == "learned"
    assert stage.partial_sums == one.whole_weights + one.vectors[1] + final
    tables = scenario.model.vocab_size * (1 if scenario.model.tied_embeddings else 2)
    divided = tables * scenario.model.hidden_size // one.t
    whole = final + positions * scenario.model.seq_length * scenario.model.hidden_size
    assert stage.root == divided + whole
    table = scenario.model.vocab_size * scenario.model.hidden_size // one.t
    assert stage.tied == table * scenario.model.tied_embeddings


@given(layers())
@settings(deadline=None)
def test_flops(scenario: Scenario) -> None:
    """The backward pass has twice the FLOPs of the model, whatever is recomputed."""
    one = LayerByHand(scenario)
    forward, backward = ops_of(scenario, "F"), ops_of(scenario, "B")
    assert total_flops(forward) == one.forward_flops
    assert total_flops(backward) == one.backward_flops
    assert total_model_flops(backward) == 2 * total_model_flops(forward)


@given(layers())
@settings(deadline=None)
def test_saved_bytes(scenario: Scenario) -> None:
    """A backward pass frees them all, but for what only a gradient of tokens' order would read."""
    one, plan = LayerByHand(scenario), plan_of(scenario)
    memory = pass_memory(plan.layers_pass(1, "F"))
    assert memory.remaining_bytes == one.saved_bytes
    left = pass_memory(plan.layers_pass(1, "B")).remaining_bytes
    assert left == 0 or (one.experts and left < one.saved_bytes)


TINY = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 8}


@given(layers(kinds=()))
@settings(deadline=None)
def test_tensor_parallel_communication_equals_gpts(scenario: Scenario) -> None:
    """Of dense layers it depends only on the number of tokens and the hidden size (Table 2)."""
    plain = scenario_with(TINY).model
    gpt = scenario.replace({f"model.{field}": getattr(plain, field) for field in CHOICES})
    for kind in ("F", "B"):
        assert collectives(ops_of(scenario, kind)) == collectives(ops_of(gpt, kind))


def collectives(ops: Iterable[Op]) -> list[Collective]:
    return [op.work for op in ops if isinstance(op.work, Collective)]
