"""A trace beside the simulation: round trips, closed forms of losses, iterations, mapping."""

import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.guests.traces.kinds import KIND_NAMED
from simtrain.guests.traces.ranks import iterations_of, read_rank_traces
from simtrain.guests.traces.study import (
    RankKernels,
    TraceComparison,
    compare_with_traces,
    exposed_of,
    losses_of,
    simulated_kernels,
    traced_kernels,
)
from simtrain.guests.traces.view import trace_view
from simtrain.iteration.report.result import Result
from simtrain.render.traces.write import write_trace
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.kineto import kernel, launched, step, write
from tests.helpers.toys import small
from tests.helpers.traced_kernels import TRACED
from tests.helpers.traces import read_json

CASES: dict[str, Scenario] = TRACED | {"host": small({"sequence_parallel": True})}


def compared(result: Result, *files: pathlib.Path) -> TraceComparison:
    ranks = [rank for file in files for rank in read_rank_traces(file)]
    return compare_with_traces(result, ranks)


@pytest.mark.parametrize("name", CASES)
def test_a_trace_of_simtrain_differs_in_nothing(name: str, tmp_path: pathlib.Path) -> None:
    """Each kernel is mapped to its op; times differ by the nanoseconds of their rounding."""
    result, file = simulate(CASES[name]), tmp_path / "t.json.gz"
    write_trace(result, file, window_s=(0.0, result.iteration_time_s))
    ranks = compared(result, file).ranks
    assert [rank.stage for rank in ranks] == [*range(result.num_stages)]
    for rank in ranks:
        assert (rank.found_by, rank.unmapped) == ("steps of the profiler", ())
        assert rank.traced_s == pytest.approx(rank.simulated_s, abs=1e-9)
        for kind in rank.kinds:
            assert kind.mapped_by == "name" and kind.traced.count == kind.simulated.count
            assert abs(kind.difference_s) <= 1e-9 * kind.traced.count
        for op in rank.ops:
            assert abs(op.difference_s) <= 1e-9 * op.traced.count
        most = 1e-9 * sum(kind.traced.count for kind in rank.kinds)
        for field in ("compute_s", "copies_s", "host_gap_s", "start_gap_s", "bubble_s"):
            real, expected = (getattr(side, field) for side in (rank.traced, rank.simulated))
            assert real == pytest.approx(expected, abs=most), field
        assert rank.traced.exposed_s == pytest.approx(rank.simulated.exposed_s, abs=most)


@pytest.mark.parametrize("name", CASES)
def test_simulated_losses_agree_with_the_breakdown(name: str) -> None:
    """Two ways to compute where the time goes: from kernels, and from the parts of the program."""
    result = simulate(CASES[name])
    for stage, breakdown in enumerate(result.stages):
        kernels = simulated_kernels(result, stage)
        losses = losses_of(kernels)
        assert losses.total_s == pytest.approx(result.iteration_time_s, rel=1e-12)
        computed_s = breakdown.compute_s + breakdown.recompute_s
        assert computed_s <= losses.compute_s * (1 + 1e-12)
        assert losses.compute_s <= (computed_s + breakdown.optimizer_s) * (1 + 1e-12)


def test_collectives_of_one_name_are_told_by_what_the_trace_says(tmp_path: pathlib.Path) -> None:
    """Forward an op gathers, and backward the op of that name scatters."""
    first, other = (simulate(CASES["tensor"].replace({"recompute": {"strategy": strategy}}))
                    for strategy in ("none", "full"))  # fmt: skip
    write_trace(first, tmp_path / "t.json.gz", window_s=(0.0, 100.0))
    traced = {
        kind.kind: kind.traced for kind in compared(other, tmp_path / "t.json.gz").ranks[0].kinds
    }
    for kind in compared(first, tmp_path / "t.json.gz").ranks[0].kinds:
        assert traced[kind.kind].total_s == pytest.approx(kind.simulated.total_s, rel=1e-4)


GEMM, NORM = "ampere_bf16_s16816gemm", "ln_fwd_kernel"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
SENDS = "ncclDevKernel_SendRecv"


def rank_kernels(file: pathlib.Path) -> RankKernels:
    (rank,) = read_rank_traces(file)
    _, iterations = iterations_of(rank)
    return traced_kernels(rank, iterations[0])


def test_losses_of_a_trace_worked_out_by_hand(tmp_path: pathlib.Path) -> None:
    """A step of 1000 µs, moment by moment:

    0 to 50 the host has not launched the first product (which it does at 40); 50 to 150 product;
    150 to 153 start of the next, launched at 60; 153 to 253 product; beside and after it an
    all-reduce from 203 to 303, exposed for 50; 303 to 403 bubble, as the next kernel was launched
    at 62; a receive alone, 403 to 503; 503 to 603 product, launched at 64; then the host is behind.
    """
    reduce, receive = launched(REDUCE, 61, 203, 100, 3), launched(SENDS, 62, 403, 100, 4)
    file = write(
        tmp_path / "t.json",
        [
            step(0, 0, 1000),
            *launched(GEMM, 40, 50, 100, 1),
            *launched(GEMM, 59, 153, 100, 2),
            *reduce,
            *receive,
            *launched(GEMM, 63, 503, 100, 5),
        ],
    )
    kernels = rank_kernels(file)
    losses = losses_of(kernels)
    assert losses.compute_s == pytest.approx(300e-6)
    assert exposed_of(kernels, kernels.of_kind(KIND_NAMED["all_reduce"])) == pytest.approx(50e-6)
    assert losses.exposed_s == pytest.approx({"all_reduce": 50e-6, "transfer": 100e-6})
    assert losses.host_gap_s == pytest.approx((50 + 397) * 1e-6)
    assert losses.start_gap_s == pytest.approx(3e-6)
    assert losses.bubble_s == pytest.approx(100e-6)
    assert losses.total_s == pytest.approx(1000e-6)


spans = st.tuples(
    st.sampled_from([GEMM, NORM, REDUCE, SENDS, "Memcpy DtoD"]),
    st.integers(0, 900),
    st.integers(1, 200),
    st.integers(1, 3),
)


@settings(max_examples=40)
@given(st.lists(spans, min_size=1, max_size=12))
def test_causes_add_up_to_the_iteration(kernels: list[tuple[str, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        events = [kernel(*span) for span in kernels]
        file = write(pathlib.Path(folder) / "t.json", [step(0, 0, 1200), *events])
        of_rank = rank_kernels(file)
    losses = losses_of(of_rank)
    assert losses.total_s == pytest.approx(1200e-6)
    for name in ("compute_s", "copies_s", "host_gap_s", "start_gap_s", "bubble_s"):
        assert getattr(losses, name) >= -1e-12


def test_steps_cut_a_trace_at_what_they_launched(tmp_path: pathlib.Path) -> None:
    """The device is behind the host: a kernel belongs to the step of its launch."""
    events = [step(number, 100 * number, 100) for number in range(3)]
    for number in range(3):
        events += launched(GEMM, 100 * number + 5, 100 * number + 50, 90, number + 1)
    (rank,) = read_rank_traces(write(tmp_path / "t.json", events))
    found_by, iterations = iterations_of(rank)
    assert found_by == "steps of the profiler"
    assert [each.kernels for each in iterations] == [[0], [1], [2]]
    assert [each.seconds * 1e6 for each in iterations] == pytest.approx([140, 100, 100])


def test_kernels_of_other_names_are_mapped_in_order(tmp_path: pathlib.Path) -> None:
    """Two halves of each product, which one op of PyTorch launched, are that product again."""
    result, file = simulate(CASES["host"]), tmp_path / "t.json.gz"
    write_trace(result, file, window_s=(0.0, result.iteration_time_s))
    named = compared(result, file).ranks
    products = {op.op for rank in named for op in rank.ops if op.kind == "matrix products"}
    events = []
    for number, event in enumerate(read_json(file)["traceEvents"]):
        if event["name"] not in products or event.get("cat") != "kernel":
            events.append(event)
            continue
        arguments = {"stream": 7, "External id": number + 100_000}
        half = event | {"name": GEMM, "dur": event["dur"] / 2, "args": arguments}
        op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 0, "dur": 1}
        events += [op | {"args": arguments}, half, half | {"ts": event["ts"] + half["dur"]}]
    info = {"distributedInfo": {"rank": 0, "world_size": 16}}
    ranks = compared(result, write(file, events, **info)).ranks
    assert len(ranks) == len(named) == result.num_stages
    for rank, expected in zip(ranks, named, strict=True):
        by = {kind.kind: kind.mapped_by for kind in rank.kinds}
        assert by == dict.fromkeys(by, "name") | {"products": "order"}
        for each, other in zip(rank.kinds, expected.kinds, strict=True):
            assert each.traced.count == other.traced.count
            assert each.traced.total_s == pytest.approx(other.traced.total_s)
        counts, before = ({op.op: op.traced.count for op in of.ops} for of in (rank, expected))
        assert counts == before
        seconds, before_s = ({op.op: op.traced.total_s for op in of.ops} for of in (rank, expected))
        assert seconds == pytest.approx(before_s)
        assert rank.traced.total_s == pytest.approx(expected.traced.total_s)
    last = next(event for event in reversed(events) if event["name"] == GEMM)
    events.append(last | {"args": {"stream": 7}})
    ranks = compared(result, write(file, events, **info)).ranks
    assert [products.isdisjoint(op.op for op in rank.ops) for rank in ranks].count(True) == 1


@pytest.mark.parametrize(("longer_us", "words"), [(0.009, "take the same"), (0.015, "longer")])
def test_roundings_are_no_differences(tmp_path: pathlib.Path, longer_us: float, words: str) -> None:
    result, file = simulate(CASES["tensor"]), tmp_path / "t.json.gz"
    events = [step(0, 0, result.iteration_time_s * 1e6 + longer_us), kernel(GEMM, 0, 5)]
    comparison = compared(result, write(file, events))
    assert words in trace_view(comparison).sentences[0]


def test_more_traces_than_stages_are_refused(tmp_path: pathlib.Path) -> None:
    file = write(tmp_path / "t.json", [kernel(GEMM, 0, 5)])
    result = simulate(small({"pipeline": 1, "sequence_parallel": True}))
    with pytest.raises(InputError, match="E728"):
        compared(result, file, file)


def test_ranks_of_the_scenario_are_beside_their_stages(tmp_path: pathlib.Path) -> None:
    result = simulate(small({"sequence_parallel": True}))
    world, stride = result.scenario.num_gpus, result.plan.mesh.stride("pp")
    files = []
    for stage in reversed(range(result.num_stages)):
        info = {"rank": stage * stride + 1, "world_size": world}
        events = [kernel(GEMM, 0, 5 + stage)]
        files.append(write(tmp_path / f"{stage}.json", events, distributedInfo=info))
    comparison = compared(result, *files)
    assert comparison.is_by_rank
    assert [(rank.stage, rank.rank) for rank in comparison.ranks] == [
        (stage, stage * stride + 1) for stage in range(result.num_stages)
    ]
    for rank, size in ((world, world), (world - 1, world + 1), (None, world)):
        info = {"rank": rank, "world_size": size}
        alone = compared(result, write(files[0], [kernel(GEMM, 0, 5)], distributedInfo=info))
        assert not alone.is_by_rank and alone.ranks[0].stage == 0
