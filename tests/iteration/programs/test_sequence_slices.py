"""Slices of sequences: the ops, times, messages and memory of their passes."""

import inspect
import itertools
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.working import MemoryReplay, pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.schedules import Schedule
from simtrain.studies.simulation import simulate
from simtrain.workload.ops import total_flops
from simtrain.workload.segments import balanced_lengths
from simtrain.workload.work import Elementwise, FusedAttention
from tests.helpers.toys import a100, machine_of, ops_of, plan_of, small

HIDDEN, TENSOR = 4096, 4
BYTES = 2  # of a bf16 number


def sliced(number: int, grid: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return eight layers on four stages of four ranks, with sequences cut into slices."""
    grid = {"sequence_slices": number, **(grid or {})}
    name = "seq1f1b_interleaved" if "interleave" in grid else "seq1f1b"
    schedule = name if number > 1 else "1f1b"
    return small(grid, **{"schedule": schedule, "attention_backend": "fused", **sections})


def attention_of(plan: Plan, kind: str, part: int) -> FusedAttention:
    """Return the kernel of the first layer's attention in a pass of a slice."""
    ops = ops_of(plan.passes[0, kind, False, part])  # type: ignore[index]
    return next(op.work for op in ops if isinstance(op.work, FusedAttention))


def test_a_slice_attends_to_all_keys_up_to_its_end() -> None:
    """Four slices of 512 tokens; the model's FLOPs are those of whole sequences."""
    plan, whole = plan_of(sliced(4)), plan_of(sliced(1))
    for kind in "FB":
        kernels = [attention_of(plan, kind, part) for part in range(4)]
        assert [kernel.seq_length for kernel in kernels] == [512] * 4
        assert [kernel.num_keys for kernel in kernels] == [512, 1024, 1536, 2048]
        assert sum(kernel.flops for kernel in kernels) == attention_of(whole, kind, 0).flops
    flops = [simulate(scenario, a100()).model_flops for scenario in (plan.scenario, whole.scenario)]
    assert flops[0] == flops[1]


def test_keys_and_values_are_joined_and_their_gradients_added() -> None:
    """The third of four slices joins 1,536 keys of 1,024 columns, and adds as many gradients."""
    plan = plan_of(sliced(4))
    keys = 1536 * HIDDEN // TENSOR * BYTES

    def moved(kind: str, name: str, part: int) -> list[int]:
        ops = ops_of(plan.passes[1, kind, False, part])  # type: ignore[index]
        works = [op.work for op in ops if op.name == name]
        return [work.moved_bytes for work in works if isinstance(work, Elementwise)]

    assert moved("F", "keys joined", 2) == moved("F", "values joined", 2) == [2 * keys] * 2
    assert moved("B", "key gradient sum", 2) == [3 * keys] * 2
    assert not moved("F", "keys joined", 0) and not moved("B", "key gradient sum", 3)


def test_the_first_slice_loads_the_whole_batch() -> None:
    plan = plan_of(sliced(4))
    names = [[op.name for op in ops_of(plan.passes[0, "F", False, part])] for part in range(4)]
    assert ["tokens to device" in of_slice for of_slice in names] == [True, False, False, False]


def test_each_message_is_a_slice() -> None:
    plan = plan_of(sliced(4))
    assert plan.sent_bytes == (BYTES * 512 * HIDDEN / TENSOR,) * 4
    assert sum(plan.sent_bytes) == plan_of(sliced(1)).sent_bytes[0]


@given(
    st.integers(2, 4),
    st.sampled_from(("none", "selective", "full")),
    st.sampled_from(({}, {"interleave": 2}, {"sequence_parallel": True})),
    st.sampled_from(("tokens", "flops")),
)
@settings(max_examples=8)
def test_memory_returns_to_its_start(
    number: int, recompute: str, grid: dict[str, Any], balance: str
) -> None:
    """Keys and values, and the sums of their gradients, are freed by their own slice's backward."""
    number = 2 ** (number - 1) if balance == "tokens" or "interleave" in grid else number
    number = min(number, 4)
    grid = {"slice_balance": balance, **grid}
    plan = plan_of(sliced(number, grid, recompute=recompute))
    replay, starts = MemoryReplay.of(plan), plan.schedule.rank_starts
    assert not replay.after_bytes[starts[1:] - 1].any()
    assert (replay.after_bytes >= 0).all()
    assert (replay.extra_bytes >= 0).all()


def held_before_backwards(replay: MemoryReplay) -> int:
    """Return the bytes that the first stage holds when its first backward pass begins."""
    schedule = replay.pass_order.actions
    first = int(np.flatnonzero(schedule.kind == 1)[0])
    assert first < schedule.rank_starts[1]
    return int(replay.running_bytes[first])


@pytest.mark.parametrize("number", [2, 4, 8])
def test_the_first_stage_holds_s_plus_p_minus_1_slices(number: int) -> None:
    """(s + p - 1)/s M of 1F1B's p M, of equal slices (Sun et al. 2024, Section 3.3)."""
    whole = held_before_backwards(MemoryReplay.of(plan_of(sliced(1))))
    parts = held_before_backwards(MemoryReplay.of(plan_of(sliced(number))))
    assert parts * 4 * number == whole * (number + 4 - 1)


def test_full_recompute_keeps_keys_and_values() -> None:
    """A slice of 512 tokens saves each layer's input, and its keys and values on four ranks."""
    plan = plan_of(sliced(4, recompute="full"))
    memory = MemoryReplay.of(plan).passes[1, "F", False, 0]
    layers, inputs = 2, BYTES * 512 * HIDDEN
    keys_values = 2 * BYTES * 512 * HIDDEN // TENSOR
    assert memory.remaining_bytes == layers * (inputs + keys_values)


def test_backward_passes_leave_sums_of_gradients_to_earlier_slices() -> None:
    """Gradients of the keys and values of 1,536, 1,024, 512 and 0 tokens, for two layers."""
    passes = MemoryReplay.of(plan_of(sliced(4))).passes
    left = [passes[1, "B", False, part].remaining_bytes for part in range(4)]
    assert left == [2 * 2 * BYTES * 512 * part * HIDDEN // TENSOR for part in range(4)]


def test_many_slices_need_no_deep_recursion() -> None:
    """Each backward pass replays that of the next slice, from the last one on."""
    plan, limit = plan_of(sliced(256, model={"num_layers": 4})), sys.getrecursionlimit()
    first = plan.passes[0, "B", False, 0]
    sys.setrecursionlimit(len(inspect.stack()) + 450)
    try:
        memory = pass_memory(first)
    finally:
        sys.setrecursionlimit(limit)
    assert memory.saved_bytes > pass_memory(plan.passes[0, "B", False, 255]).saved_bytes > 0


def test_slices_take_the_time_of_their_own_ops() -> None:
    """Later slices attend to more keys; together they take longer than whole sequences."""
    machine = machine_of(a100())

    def seconds(number: int, kind: str) -> list[float]:
        plan = plan_of(sliced(number, model={"seq_length": 16384}))
        keys = [(1, kind, False, part) for part in range(number)]
        return [machine.time(plan.passes[key]).duration_s for key in keys]  # type: ignore[index]

    for kind in "FB":
        parts, (whole_s,) = seconds(4, kind), seconds(1, kind)
        assert parts == sorted(parts)
        assert whole_s < sum(parts) < 1.2 * whole_s


@given(
    st.integers(1, 64).map(lambda number: 1024 * number),
    st.integers(1, 8),
    st.sampled_from((1, 8)),
    st.floats(0, 3),
)
def test_balanced_slices_have_equal_flops(
    length: int, number: int, unit: int, attention: float
) -> None:
    """Each slice is within one unit of an equal share; later slices are shorter."""
    lengths = balanced_lengths(length, number, unit, 1.0, attention)
    assert sum(lengths) == length and len(lengths) == number
    assert all(tokens > 0 and tokens % unit == 0 for tokens in lengths)
    ends = np.cumsum((0, *lengths)) / length
    flops = np.diff(ends + attention * ends**2)
    most_of_unit = number * unit / length * (1 + 2 * attention)
    assert np.abs(flops - (1 + attention) / number).max() <= most_of_unit
    assert all(tokens + unit > later for tokens, later in itertools.pairwise(lengths))


def authors_flops(tokens: float, end: float) -> float:
    """Return the TFLOPs of `tokens` that end at `end` (`SeqTFlops.get_prefix_tflops`).

    A model with 24 layers of 4,096 channels, 32 heads, an MLP of 16,384 and a small vocabulary.
    """
    heads, channels, hidden = 32, 128, 4096
    attention = tokens * end * (4 * channels) * heads - tokens**2 * 4 * channels * heads / 2
    linear = 8 * tokens * hidden * heads * channels + 4 * tokens * hidden * 16384
    return 24 * (attention + linear) / 1e12


def test_balanced_slices_are_those_of_the_authors() -> None:
    """Their solver cuts from the end; the flops of 16,384 tokens are 4 x 12 h² and 2 s h per token.

    Its three operations per score of the softmax, and its vocabulary, are left out on both sides.
    """
    length, number = 16384, 4
    total, end, expected = authors_flops(length, length), float(length), list[int]()
    for _ in range(number - 1):
        low, high = 0.0, end
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if authors_flops(middle, end) < total / 4 else (low, middle)
        expected.insert(0, int(low) // 2 * 2)
        end -= expected[0]
    linear, attention = 24 * length * 24 * 4096**2, 24 * 2 * length**2 * 4096
    lengths = balanced_lengths(length, number, 2, linear, attention)
    assert lengths == (int(end), *expected)


def test_the_lengths_of_a_scenario_balance_its_recorded_flops() -> None:
    plan = plan_of(sliced(4, {"slice_balance": "flops"}, model={"seq_length": 16384}))
    lengths = [batch.seq_length for batch in plan.slices]
    assert sum(lengths) == 16384 and lengths == sorted(lengths, reverse=True)
    forward = [
        sum(
            total_flops(ops_of(plan.passes[number, "F", False, part]))
            for number in plan.model_chunks.numbers
        )
        for part in range(4)
    ]
    assert max(forward) < 1.002 * min(forward)


def test_numbers_of_actions_count_slices() -> None:
    schedule: Schedule = plan_of(sliced(4)).schedule
    assert schedule.num_microbatches == 8 * 4
    assert schedule.action(5).in_short(4) == "forward of slice 1 of microbatch 1"
    assert schedule.action(5).words_on(0, 4) == "forward pass of slice 1 of microbatch 1"
