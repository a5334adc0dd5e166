"""Memory of a forward or backward pass, replayed op by op."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.working import PassMemory, pass_memory, replay
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.schedules import Action
from simtrain.workload.ops import Phase, Tensor
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.passes import PassKind, record_pass
from simtrain.workload.recompute import SAVE_ALL
from tests.helpers.toys import (
    chunk_with,
    kept_bytes,
    layer_scenarios,
    pass_of,
    pass_with,
    plan_of,
    shape_of,
    zero,
)

POLICIES = st.one_of(
    st.builds(RecomputePolicy, strategy=st.sampled_from(["none", "selective"])),
    st.builds(
        RecomputePolicy,
        strategy=st.just("full"),
        method=st.sampled_from(["uniform", "block"]),
        num_layers=st.integers(1, 4),
    ),
)
KINDS: tuple[PassKind, ...] = ("F", "B", "I", "W")
Blocks = Mapping[str, Any]
"""Keyword arguments of `chunk_with`."""


def chunks_of(max_layers: int) -> st.SearchStrategy[Blocks]:
    others = dict.fromkeys(("batch", "embedding", "head"), st.booleans())
    return st.fixed_dictionaries({"num_layers": st.integers(1, max_layers), **others})


CHUNKS = chunks_of(max_layers=5)


def memory_of(
    scenario: Scenario, blocks: Blocks, policy: RecomputePolicy
) -> tuple[PassMemory, PassMemory]:
    """Return the memory of a forward and a backward pass."""
    chunk = chunk_with(scenario, **blocks)
    forward, backward = (
        pass_memory(pass_with(scenario, chunk, kind, recompute=policy)) for kind in ("F", "B")
    )
    return forward, backward


@given(layer_scenarios(), CHUNKS, POLICIES)
@settings(max_examples=40)
def test_all_saved_tensors_are_freed(
    scenario: Scenario, blocks: Blocks, policy: RecomputePolicy
) -> None:
    """A backward pass frees them all; so do its two halves together."""
    chunk = chunk_with(scenario, **blocks)
    passes = {kind: pass_with(scenario, chunk, kind, recompute=policy) for kind in KINDS}
    memory = {kind: pass_memory(one) for kind, one in passes.items()}
    assert (
        memory["F"].saved_bytes
        == memory["F"].remaining_bytes
        == kept_bytes(record_pass(passes["F"]))
    )
    assert memory["F"].remaining_bytes == memory["B"].saved_bytes == memory["I"].saved_bytes
    assert memory["I"].remaining_bytes == memory["W"].saved_bytes
    assert memory["B"].remaining_bytes == memory["W"].remaining_bytes == 0


# -------------------------------------------------------------------------- op by op

BEFORE: dict[PassKind, PassKind] = {"B": "F", "I": "F", "W": "I"}
"""The pass that runs before each of the others."""
SavedBytes = dict[tuple[int, Tensor], int]
"""Bytes of each saved tensor, by its block's place in the chunk."""


def op_by_op(
    record: PassRecord, held: SavedBytes, *, counts_left: bool
) -> tuple[PassMemory, SavedBytes]:
    """Replay all ops one by one; also return the remaining tensors."""
    held, again = dict(held), set()
    start_bytes = sum(held.values())
    moments = []
    for owner, segment in zip(record.owners, record.segments, strict=True):
        frees = segment.frees or ((),) * len(segment.ops)
        for op, waiting_bytes, freed in zip(segment.ops, segment.waiting_bytes, frees, strict=True):
            new = {(owner, tensor) for tensor in op.saves} - held.keys()
            held |= {key: key[1].num_bytes for key in new}
            again |= new if op.phase is Phase.RECOMPUTE else set()
            own_bytes = sum(tensor.num_bytes for tensor in {*op.saves, *freed})
            working_bytes = op.working_bytes(own_bytes) + waiting_bytes
            again_bytes = sum(held[key] for key in again)
            moments.append((sum(held.values()) + working_bytes, again_bytes, op.name))
            for key in {(owner, tensor) for tensor in freed} & held.keys():
                del held[key]
                again.discard(key)
    remaining_bytes = sum(held.values())
    compared_bytes = remaining_bytes if counts_left else start_bytes
    # Of several equal peaks, the first counts.
    peak_bytes, again_bytes, name = max(moments, key=lambda moment: moment[0])
    extra_bytes = max(0, peak_bytes - compared_bytes)
    memory = PassMemory(
        saved_bytes=compared_bytes,
        remaining_bytes=remaining_bytes,
        extra_bytes=extra_bytes,
        recomputed_bytes=min(extra_bytes, again_bytes),
        op=name if extra_bytes else "",
        buffer_bytes=max(op.buffer_bytes for op in record.ops),
    )
    return memory, held


@given(layer_scenarios(), chunks_of(max_layers=13), POLICIES)
@settings(max_examples=25)
def test_memory_of_a_chunk_equals_a_replay_op_by_op(
    scenario: Scenario, blocks: Blocks, policy: RecomputePolicy
) -> None:
    chunk, left = chunk_with(scenario, **blocks), dict[PassKind, SavedBytes]()
    for kind in KINDS:
        one = pass_with(scenario, chunk, kind, recompute=policy)
        before = left[BEFORE[kind]] if kind in BEFORE else {}
        memory, left[kind] = op_by_op(record_pass(one), before, counts_left=kind == "F")
        assert pass_memory(one) == memory


# ------------------------------------------------------------------------------ ZeRO


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_gathered_parameters_of_zero_are_not_activations(
    stage: int, recompute: str, overlaps: bool
) -> None:
    """Unsharded parameters and gradients count as buffers."""
    scenario = zero(stage, recompute=recompute, overlap={"data_parallel": overlaps})
    plan, left_bytes, live = plan_of(scenario), 0, dict[int, Any]()
    for kind in ("F", "B"):
        one = pass_of(plan, Action(0, kind, 0))
        assert one.options.sharding is not None
        alone = dataclasses.replace(one.options, sharding=None)
        memory, live = replay(record_pass(one), left_bytes, live, counts_left=kind == "F")
        left_bytes = memory.remaining_bytes
        assert memory == pass_memory(dataclasses.replace(one, options=alone)) == pass_memory(one)
    assert live == {}


# --------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@given(scenario=layer_scenarios(max_tensor=1))
def test_peak_of_a_backward_pass_by_hand(recompute: str, scenario: Scenario) -> None:
    """Count in bytes of sbh, and in the number n of attention scores, on one rank.

    One candidate is the second product of the MLP: besides its 2 and 8, the residual gradient of 2
    exists, and the dropout mask of 1 has been freed. The other is the gradient of the scores (2n):
    besides it exist its output's gradient, the value, and the residual gradient of 2, while 1 + 8 +
    8 + 2 + 2 + 1 + 2 have been freed. Before both, recompute adds the core (5n), or all tensors
    except the layer's input (34 - 2 and 5n).
    """
    shape = shape_of(scenario)
    sbh = shape.tokens * shape.hidden
    scores = shape.microbatch * shape.heads * shape.seq_length**2
    again = {"none": 0, "selective": 5 * scores, "full": 32 * sbh + 5 * scores}[recompute]
    early = again if recompute == "full" else 0
    expected = max(early + 11 * sbh, again + 2 * scores - 18 * sbh)
    policy = RecomputePolicy.model_validate({"strategy": recompute})
    _, backward = memory_of(scenario, {"num_layers": 1}, policy)
    assert backward.extra_bytes == expected
    assert backward.op in ("4h→h input gradient", "attention over V scores gradient")


@pytest.mark.parametrize(("in_place", "beyond"), [(True, 2), (False, 6)])
@given(scenario=layer_scenarios(max_tensor=1))
def test_peak_of_the_head_by_hand(scenario: Scenario, in_place: bool, beyond: int) -> None:
    """16-bit logits (2) and fp32 logits (4) are kept; a copy has their maximum subtracted (4)."""
    shape = shape_of(scenario)
    scenario = scenario.replace({"memory.in_place_cross_entropy": in_place})
    forward, backward = memory_of(scenario, {"head": True}, SAVE_ALL)
    logits, sbh = shape.tokens * shape.vocab, shape.tokens * shape.hidden
    assert forward.saved_bytes == 4 * logits + 4 * sbh
    assert forward.extra_bytes == beyond * logits
    # Then the 16-bit gradient of the logits exists together with the fp32 gradient, or with the
    # input gradient.
    assert backward.extra_bytes == max(2 * logits, 2 * logits + 2 * sbh - 4 * logits, 0)


@given(layer_scenarios(), st.integers(1, 5))
@settings(max_examples=40)
def test_each_layer_of_a_unit_adds_its_recomputed_tensors(
    scenario: Scenario, num_layers: int
) -> None:
    """One more layer in a unit adds all saved tensors of a layer."""
    layer = pass_with(scenario, chunk_with(scenario, 1), "F", recompute=SAVE_ALL)

    def beyond(length: int) -> int:
        policy = RecomputePolicy(strategy="full", num_layers=length)
        return memory_of(scenario, {"num_layers": length}, policy)[1].extra_bytes

    assert beyond(num_layers + 1) - beyond(num_layers) == kept_bytes(record_pass(layer))


@given(layer_scenarios())
def test_the_output_gradient_is_held_during_recompute(scenario: Scenario) -> None:
    """Full recompute holds the gradient of the layer's output, selective that of attention's
    output.
    """
    shape = shape_of(scenario)
    layer_output = 2 * shape.local_tokens * shape.hidden
    attention_output = 2 * shape.tokens * shape.hidden // shape.tensor
    chunk = chunk_with(scenario, 1)
    for strategy, expected in (("full", layer_output), ("selective", attention_output)):
        policy = RecomputePolicy.model_validate({"strategy": strategy})
        record = record_pass(pass_with(scenario, chunk, "B", recompute=policy))
        waiting = itertools.chain(*(segment.waiting_bytes for segment in record.segments))
        for op, num_bytes in zip(record.ops, waiting, strict=True):
            assert num_bytes == (expected if op.phase is Phase.RECOMPUTE else 0)


@given(layer_scenarios())
def test_peak_of_a_recomputed_layer_is_its_forward_pass_and_a_gradient(scenario: Scenario) -> None:
    """The gradient is that of the layer's output."""
    chunk, shape = chunk_with(scenario, 1), shape_of(scenario)
    whole = pass_memory(pass_with(scenario, chunk, "F", recompute=SAVE_ALL))
    policy = RecomputePolicy(strategy="full")
    forward, backward = (
        record_pass(pass_with(scenario, chunk, kind, recompute=policy)) for kind in ("F", "B")
    )
    left, live = replay(forward, 0, {}, counts_left=True)
    again = dataclasses.replace(
        backward, segments=backward.segments[:1], owners=backward.owners[:1]
    )
    assert {op.phase for op in again.ops} == {Phase.RECOMPUTE}
    memory, _ = replay(again, left.remaining_bytes, live, counts_left=False)
    peaks = [one.saved_bytes + one.extra_bytes for one in (memory, whole)]
    assert peaks[0] - peaks[1] == 2 * shape.local_tokens * shape.hidden
