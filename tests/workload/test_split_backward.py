"""Backward passes split into `I` and `W`, which together do exactly the work of `B`."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.schedules import Action, Custom, Kind, Schedule, looped
from simtrain.workload.passes import Pass
from tests.helpers.toys import a100, changed, layer_scenarios, machine_of, plan_of, small, zero

BACKWARD: tuple[Kind, ...] = ("B", "I", "W")
SCENARIOS = st.one_of(
    layer_scenarios(),
    st.builds(
        small,
        recompute=st.sampled_from(
            ["none", "selective", "full", {"strategy": "full", "num_layers": 2}]
        ),
        attention_backend=st.sampled_from(["fused", "unfused"]),
    ),
    st.builds(zero, st.sampled_from([2, 3]), overlap=st.just({"data_parallel": True})),
)


def chunk_pass(scenario: Scenario, kind: Kind) -> Pass:
    """Return a pass of the first stage's chunk, with the embedding, and the head of
    a single stage.
    """
    plan = plan_of(scenario)
    return plan.chunk_pass(plan.chunks[0], kind, saves_all=False)


@settings(max_examples=20, deadline=None)
@given(SCENARIOS)
def test_times_of_halves_add_up_if_nothing_overlaps(scenario: Scenario) -> None:
    """With blocking collectives and no launch times, a pass takes the sum of its ops' times."""
    machine = machine_of(changed(a100(), host__issue=0.0))
    blocking = scenario.replace({"overlap.tensor_parallel": False, "overlap.data_parallel": False})
    whole, inputs, weights = (
        machine.time(chunk_pass(blocking, kind)).duration_s for kind in BACKWARD
    )
    assert math.isclose(inputs + weights, whole, rel_tol=1e-12)


@settings(max_examples=40)
@given(SCENARIOS)
def test_each_pass_starts_with_the_tensors_that_the_last_one_leaves(scenario: Scenario) -> None:
    """F leaves the tensors that B and I start with, I those that W starts with; B and W none."""
    forward, whole, inputs, weights = (
        pass_memory(chunk_pass(scenario, kind)) for kind in ("F", *BACKWARD)
    )
    assert forward.remaining_bytes == whole.saved_bytes == inputs.saved_bytes
    assert inputs.remaining_bytes == weights.saved_bytes > 0
    assert whole.remaining_bytes == weights.remaining_bytes == 0


def test_tensors_saved_for_the_weight_gradients_of_a_layer_by_hand() -> None:
    """Saved: inputs of four products, gradients of their outputs, and gradients that three bias
    sums read.

    In units of sbh bytes, inputs are 2 + 2 + 2 + 8 = 14. Gradients of the outputs of QKV 6,
    projection 2, h→4h 8 and 4h→h 2 are 18. Gradients that bias sums read, of the outputs of
    attention 2, MLP 2 and GeLU 8, are 12.
    """
    scenario = small({"tensor": 1, "pipeline": 1})
    inputs = pass_memory(plan_of(scenario).layers_pass(1, "I"))
    assert inputs.remaining_bytes == (14 + 18 + 12) * 2048 * 4096


# A schedule that splits its backward passes: ZB-H1's idea on two stages and two microbatches.


def split_schedule() -> Schedule:
    """Return the order of split backward passes."""
    ranks = ("0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1")
    actions = [[*map(Action.parse, rank.split())] for rank in ranks]
    return Schedule.of("1f1b", looped(2, 1), 2, actions)


def plans(**sections: Any) -> tuple[Plan, Plan]:
    """Return plans of two stages and two microbatches, with whole and split backward passes."""
    scenario = small({"pipeline": 2}, **sections).replace({"batch.global": 2})
    # Split passes need asynchronous transfers, which Megatron-LM has with interleaving only.
    overlap = scenario.overlap.model_copy(update={"pipeline": True})
    scenario = scenario.model_copy(update={"overlap": overlap})
    whole = plan_of(scenario)
    split = replace(whole)
    vars(split)["order"] = replace(whole.order, family=Custom(actions=split_schedule()))
    return whole, split
