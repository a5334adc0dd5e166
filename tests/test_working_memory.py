"""What a forward or backward pass holds beyond what is kept, from replaying its ops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import a100, layer_scenarios, shape_of, zero

from simtrain.iteration import Iteration
from simtrain.memory.working import (
    ActionMemory,
    Tensors,
    backward_memory,
    forward_memory,
    pass_memory,
)
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import Action
from simtrain.workload.chunk import Chunk
from simtrain.workload.shape import LayerShape

POLICIES = st.one_of(
    st.builds(RecomputePolicy, strategy=st.sampled_from(["none", "selective"])),
    st.builds(
        RecomputePolicy,
        strategy=st.just("full"),
        method=st.sampled_from(["uniform", "block"]),
        num_layers=st.integers(1, 4),
    ),
)
CHUNKS = st.builds(
    Chunk, st.integers(1, 5), st.booleans(), st.booleans(), reads_batch=st.booleans()
)


def both_passes(
    chunk: Chunk, shape: LayerShape, policy: RecomputePolicy
) -> tuple[ActionMemory, ActionMemory, Tensors]:
    """Forward, backward, and what is left then."""
    forward, kept = forward_memory(chunk.forward(shape, policy, hide=True))
    backward, left = backward_memory(chunk.backward(shape, policy, hide=True), kept)
    return forward, backward, left


@given(layer_scenarios(), CHUNKS, POLICIES, st.booleans())
def test_all_that_is_kept_is_released(
    scenario: Scenario, chunk: Chunk, policy: RecomputePolicy, distribute: bool
) -> None:
    shape = shape_of(scenario)
    if policy.strategy == "full" and shape.tensor > 1 and not shape.sequence_parallel:
        policy = policy.model_copy(update={"distribute": distribute})
    forward, backward, left = both_passes(chunk, shape, policy)
    assert left == {}
    assert forward.kept_bytes == backward.kept_bytes
    assert forward.kept_bytes == chunk.forward(shape, policy, hide=True).saved_bytes()


LONG_CHUNKS = st.builds(
    Chunk, st.integers(1, 13), st.booleans(), st.booleans(), reads_batch=st.booleans()
)


@given(layer_scenarios(), LONG_CHUNKS, POLICIES)
def test_units_that_are_counted_hold_what_they_hold_replayed(
    scenario: Scenario, chunk: Chunk, policy: RecomputePolicy
) -> None:
    shape = shape_of(scenario)
    forward, backward, _ = both_passes(chunk, shape, policy)
    assert pass_memory(chunk, policy, shape, True) == (forward, backward)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("hide", [False, True])
def test_what_zero_exchanges_within_a_pass_holds_no_activations(
    stage: int, recompute: str, hide: bool
) -> None:
    """Parameters and gradients that are whole for a moment are buffers of their own."""
    scenario = zero(stage, recompute=recompute, overlap={"data_parallel": hide})
    iteration = Iteration(scenario, a100())
    forward, kept = forward_memory(iteration.order(Action(0, "F", 0)))
    backward, left = backward_memory(iteration.order(Action(0, "B", 0)), kept)
    assert left == {}
    policy, hides = scenario.recompute, scenario.overlap.tensor_parallel
    assert pass_memory(iteration.chunks[0], policy, iteration.shape, hides) == (forward, backward)


@given(layer_scenarios(), CHUNKS, POLICIES)
def test_a_pass_holds_at_least_what_is_kept(
    scenario: Scenario, chunk: Chunk, policy: RecomputePolicy
) -> None:
    for memory in both_passes(chunk, shape_of(scenario), policy)[:2]:
        assert 0 <= memory.recomputed_bytes <= memory.beyond_bytes
    forward, *_ = both_passes(chunk, shape_of(scenario), policy)
    assert forward.recomputed_bytes == 0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@given(scenario=layer_scenarios(max_tensor=1))
def test_the_fullest_moment_of_a_backward_pass_by_hand(recompute: str, scenario: Scenario) -> None:
    """In units of sbh bytes and of the number n of attention scores; all on one rank.

    Either at the second product of the MLP: beside its 2 and 8 flow the 2 around the block, and
    the dropout mask of 1 has gone. Or at the gradient of the scores (2n): with it flow its output's
    gradient, value, and the 2 around the block, while 1 + 8 + 8 + 2 + 2 + 1 + 2 have gone. Before,
    the core (5n) or all but the layer's input (34 - 2 and 5n) has been computed again.
    """
    shape = shape_of(scenario)
    sbh, scores = shape.tokens * shape.hidden, shape.scores
    again = {"none": 0, "selective": 5 * scores, "full": 32 * sbh + 5 * scores}[recompute]
    early = again if recompute == "full" else 0
    expected = max(early + 11 * sbh, again + 2 * scores - 18 * sbh)
    policy = RecomputePolicy.model_validate({"strategy": recompute})
    _, backward, _ = both_passes(Chunk(1), shape, policy)
    assert backward.beyond_bytes == expected
    assert backward.op in ("4h→h input gradient", "attention over V scores gradient")


@given(layer_scenarios(max_tensor=1))
def test_the_fullest_moment_of_the_head_by_hand(scenario: Scenario) -> None:
    """16-bit logits (2), fp32 logits (4) and those less their maximum (4), of which 4 are kept."""
    shape = shape_of(scenario)
    head = Chunk(0, has_head=True)
    forward, backward, _ = both_passes(head, shape, RecomputePolicy())
    logits, sbh = shape.tokens * shape.vocab, shape.tokens * shape.hidden
    assert forward.kept_bytes == 4 * logits + 4 * sbh
    assert forward.beyond_bytes == 6 * logits
    # Then the 16-bit gradient of the logits beside the fp32 one, or beside that of its input.
    assert backward.beyond_bytes == max(2 * logits, 2 * logits + 2 * sbh - 4 * logits, 0)


@given(layer_scenarios(), st.integers(1, 5))
def test_a_longer_unit_holds_its_layers_again(scenario: Scenario, num_layers: int) -> None:
    """Each layer more of a unit is a whole layer more that has been computed again."""
    shape = shape_of(scenario)
    layer = Chunk(1).forward(shape, RecomputePolicy(), hide=True).saved_bytes()

    def beyond(length: int) -> int:
        policy = RecomputePolicy(strategy="full", num_layers=length)
        return both_passes(Chunk(length), shape, policy)[1].beyond_bytes

    assert beyond(num_layers + 1) - beyond(num_layers) == layer
