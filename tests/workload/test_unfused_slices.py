"""Unfused attention of slices: their scores, products, keys and gradients, counted by hand."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.memory.working import MemoryReplay
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.work import Elementwise
from tests.helpers.toys import ops_of, plan_of, small

BYTES = 2
HIDDEN, HEADS, LENGTH, TENSOR, LAYERS = 4096, 32, 2048, 4, 2
"""Of the small model: two layers on each of four stages."""
CORE = ("QKᵀ", "softmax", "attention over V", "key", "value", "merge heads")


def sliced(lengths: Sequence[int], grid: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return the small model with sequences cut into slices of these lengths, or whole ones."""
    cut = {"sequence_slices": len(lengths), "slice_lengths": list(lengths)}
    is_cut = len(lengths) > 1
    grid = (cut if is_cut else {}) | (grid or {})
    return small(grid, **{"schedule": "terapipe" if is_cut else "gpipe", **sections})


def core_ops(plan: Plan, kind: str, part: int = 0) -> list[Op]:
    """Return the ops of attention's core in a pass of a slice."""
    ops = ops_of(plan.passes[1, kind, False, part])  # type: ignore[index]
    return [op for op in ops if op.name.startswith(CORE)]


def scores(lengths: Sequence[int]) -> int:
    """Return the sum of l n over the slices: l queries of each attend to n keys."""
    return sum(map(int.__mul__, lengths, itertools.accumulate(lengths)))


def cuts(parts: int = 8) -> st.SearchStrategy[list[int]]:
    """Draw lengths of 2 to 4 slices, multiples of an eighth of the sequence."""
    places = st.sets(st.integers(1, parts - 1), min_size=1, max_size=3).map(sorted)
    return places.map(
        lambda ends: [
            (end - start) * LENGTH // parts for start, end in itertools.pairwise([0, *ends, parts])
        ]
    )


def test_the_first_slice_is_a_short_sequence() -> None:
    """It has no earlier keys: each op of its core does the work of unfused attention on it."""
    slices = plan_of(sliced((512, 1536)))
    short = plan_of(sliced((512,), model={"seq_length": 512}))
    of_slice, of_sequence = core_ops(slices, "F"), core_ops(short, "F")
    assert [(op.name, op.work) for op in of_slice] == [(op.name, op.work) for op in of_sequence]


@given(cuts())
@settings(max_examples=10)
def test_products_are_the_sum_of_l_n(lengths: list[int]) -> None:
    """Two products of 2 l n h / t FLOPs forward, and four backward, in each of two layers."""
    plan = plan_of(sliced(lengths))
    for kind, products in (("F", 2), ("B", 4)):
        flops = [total_flops(core_ops(plan, kind, part)) for part in range(len(lengths))]
        assert sum(flops) == LAYERS * products * 2 * scores(lengths) * HIDDEN // TENSOR


@given(cuts(), st.booleans())
@settings(max_examples=10)
def test_slices_save_fewer_scores(lengths: list[int], drops_out: bool) -> None:
    """5 a l n / t bytes of each layer's slice with dropout, and 2 a l n / t without (Table 2)."""
    model = {} if drops_out else {"attention_dropout": 0}
    of_scores = Fraction((5 if drops_out else 2) * HEADS, TENSOR)

    def saved(cut: Sequence[int]) -> int:
        passes = MemoryReplay.of(plan_of(sliced(cut, model=model))).passes
        parts = range(len(cut))
        return sum(passes[1, "F", False, part].remaining_bytes for part in parts)

    fewer = LAYERS * of_scores * (LENGTH**2 - scores(lengths))
    assert saved([LENGTH]) - saved(lengths) == fewer


def test_keys_are_joined_and_their_gradients_added() -> None:
    """The third of four slices joins 1,536 keys of 1,024 columns, and adds as many gradients."""
    plan = plan_of(sliced([512] * 4))
    keys = 1536 * HIDDEN // TENSOR * BYTES

    def moved(kind: str, name: str, part: int) -> list[int]:
        works = [op.work for op in core_ops(plan, kind, part) if op.name == name]
        return [work.moved_bytes for work in works if isinstance(work, Elementwise)]

    assert moved("F", "keys joined", 2) == moved("F", "values joined", 2) == [2 * keys] * 2
    assert moved("B", "key gradient sum", 2) == moved("B", "value gradient sum", 2)
    assert moved("B", "value gradient sum", 2) == [3 * keys] * 2
    assert not moved("F", "keys joined", 0) and not moved("B", "key gradient sum", 3)


def test_the_fused_softmax_reads_scores_up_to_each_query() -> None:
    """Of 512 queries and 1,024 keys 3/4 of the scores; a separate mask reads all of them."""
    plan = plan_of(sliced([512] * 4))
    size = HEADS // TENSOR * 512 * 1024 * BYTES
    softmax = next(op for op in core_ops(plan, "F", 1) if op.name == "softmax")
    assert isinstance(softmax.work, Elementwise)
    assert softmax.work.moved_bytes == size * 3 // 4 + size
