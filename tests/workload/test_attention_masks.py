"""Attention windows and packed documents: FLOPs and times by hand."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.durations.model import DurationModel
from simtrain.hardware.load import profile_of
from simtrain.iteration.plan import Plan
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.scenario.model import Experts
from simtrain.studies.simulation import simulate
from simtrain.workload.gpt import TransformerLayer, gpt_blocks
from simtrain.workload.ops import Op, total_flops, total_model_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.work import FusedAttention
from tests.helpers.toys import plan_of, scenario_with, small


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 4), st.integers(1, 4))
def test_flops_of_a_window_count_the_scores_in_its_band(
    s: int, window: int, size: int, value: int
) -> None:
    """Scores on both edges of the band count half: the diagonal, and `window` tokens before it."""
    distances = [query - key for query, key in product(range(s), repeat=2)]
    scores = sum(
        0.5 if distance in (0, window) else 1 for distance in distances if 0 <= distance <= window
    )
    forward, backward = (
        FusedAttention(3, s, size, is_backward, value_size=value, window=window)
        for is_backward in (False, True)
    )
    assert forward.flops == 3 * scores * 2 * (size + value)
    assert backward.flops == 3 * scores * 2 * (3 * size + 2 * value)
    assert (forward.model_flops, backward.model_flops) == (
        3 * scores * 4 * (size + value),
        3 * scores * 8 * (size + value),
    )


@pytest.mark.parametrize(("every", "windows"), [(None, "wwwwww"), (2, "wfwfwf"), (4, "wwwfww")])
@pytest.mark.parametrize("dense", [0, 3])
def test_every_nth_layer_attends_to_all_tokens(every: int | None, windows: str, dense: int) -> None:
    """Windows count layers from 1, as Megatron-LM does. Dense first layers do not shift them."""
    model = small().model.model_copy(
        update={"num_layers": 6, "attention_window": 128, "full_attention_every": every}
    )
    if dense:
        experts = Experts(num=4, top_k=2, ffn_hidden_size=64, first_dense_layers=dense)
        model = model.model_copy(update={"experts": experts, "biases": False})
    one = small().model_copy(update={"model": model, "attention_backend": "fused"})
    layers = [block for block in gpt_blocks(one).blocks if isinstance(block, TransformerLayer)]
    assert "".join("w" if layer.window else "f" for layer in layers) == windows
    has_experts = [layer.experts is not None for layer in layers]
    assert has_experts == [dense > 0 and number >= dense for number in range(6)]


def test_flops_and_time_of_mixed_windows_are_weighted_means() -> None:
    """Eight layers are on four stages. If every second layer is full, each stage has one layer of
    either kind, and its compute time is their mean.
    """

    def found(**model: Any) -> Result:
        size = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "seq_length": 8192}
        return simulate(small(attention_backend="fused", model=size | model))

    whole, narrow = found(), found(attention_window=512)
    half, most = (found(attention_window=512, full_attention_every=n) for n in (2, 4))
    assert 2 * half.model_flops == whole.model_flops + narrow.model_flops
    assert 4 * most.model_flops == whole.model_flops + 3 * narrow.model_flops
    compute = [one.breakdown.compute_s for one in (whole, narrow, half)]
    assert 2 * compute[2] == pytest.approx(compute[0] + compute[1])
    assert {one.memory.fullest.peak_bytes for one in (whole, half, narrow)} == {
        whole.memory.fullest.peak_bytes
    }


SIZES = {"num_layers": 1, "hidden_size": 256, "num_attention_heads": 4, "attention_dropout": 0}
LENGTH = 1024


def packed(lengths: list[int] | None, length: int = LENGTH, **sections: Any) -> Scenario:
    """Return a layer with one packed sequence a microbatch."""
    batch = {"micro": 1, "global": 4, "packed_lengths": lengths}
    options = {"attention_backend": "fused", "batch": batch, "cluster": "h100_sxm"}
    model = SIZES | {"seq_length": length, "position_embedding": "rope"}
    return scenario_with(model | sections.pop("model", {}), **options | sections)


def ops_of(plan: Plan) -> list[Op]:
    return [op for kind in ("F", "B") for op in record_pass(plan.layers_pass(1, kind)).ops]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lengths", "documents"),
    [
        ([512], ((512, 2),)),
        ([1024], ((1024, 1),)),
        ([4096], ((1024, 1),)),
        ([300], ((124, 1), (300, 3))),
        ([512, 256, 256], ((256, 2), (512, 1))),
        ([600, 100], ((100, 1), (324, 1), (600, 1))),
    ],
)
def test_documents_repeat_until_the_sequence_is_full(
    lengths: list[int], documents: tuple[tuple[int, int], ...]
) -> None:
    assert packed(lengths).documents == documents


@given(st.lists(st.integers(1, 1500), min_size=1, max_size=5))
def test_flops_by_hand(lengths: list[int]) -> None:
    """Causal scores of each document: 2 products forward and 5 backward of l² · h, halved by the
    mask twice; everything else is that of a whole sequence.
    """
    plan, whole = plan_of(packed(lengths)), plan_of(packed(None))
    squares = sum(number * length**2 for length, number in plan.scenario.documents)
    assert sum(number * length for length, number in plan.scenario.documents) == LENGTH
    less = (LENGTH**2 - squares) * 256
    ours, theirs = ops_of(plan), ops_of(whole)
    assert total_flops(theirs) - total_flops(ours) == (2 + 5) * less
    assert total_model_flops(theirs) - total_model_flops(ours) == (4 + 8) * less
    others = [
        [op for op in ops if not isinstance(op.work, FusedAttention)] for ops in (ours, theirs)
    ]
    assert [op.work for op in others[0]] == [op.work for op in others[1]]


@pytest.mark.parametrize("length", [64, 128, 512, LENGTH])
def test_equal_documents_take_as_long_as_that_many_sequences(length: int) -> None:
    number = LENGTH // length
    apart = packed(None, length, batch={"micro": number, "global": 4 * number})
    together = packed([length])
    model = DurationModel(profile_of(together))
    times, flops = [], []
    for scenario in (together, apart):
        ops = ops_of(plan_of(scenario))
        times.append([model.seconds(op.work) for op in ops if isinstance(op.work, FusedAttention)])
        flops.append(total_model_flops(ops))
    assert times[0] == pytest.approx(times[1], rel=1e-12)
    assert flops[0] == flops[1]


def test_a_window_counts_within_documents() -> None:
    """A document of 512 tokens with a window of 128 has 512² - 384² scores; one of 64 has 64²."""
    window = {"attention_window": 128}
    (work, *_) = (
        op.work
        for op in ops_of(plan_of(packed([512, 64, 448], model=window)))
        if isinstance(op.work, FusedAttention)
    )
    assert work.band == 512**2 - 384**2 + 64**2 + 448**2 - 320**2
    assert work.longest_row == 128


@pytest.mark.parametrize("lengths", [[512], [512, 64, 448], None])
def test_context_parallel_ranks_share_the_scores_of_each_document(
    lengths: list[int] | None,
) -> None:
    """Around a ring each rank computes 1/cp of the scores of every document."""
    plan = plan_of(packed(lengths, parallelism={"context": 4}))
    squares = sum(number * length**2 for length, number in plan.scenario.documents or ((1024, 1),))
    works = [op.work for op in record_pass(plan.layers_pass(1, "F")).ops]
    bands = [work.band for work in works if isinstance(work, FusedAttention)]
    assert len(bands) == 4
    assert 4 * sum(bands) == squares
