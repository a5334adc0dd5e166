"""Traces of PyTorch's profiler: their events, kinds of kernels, ranks; damaged ones are refused."""

import gzip
import json
import math
import pathlib
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.guests.traces import events
from simtrain.guests.traces.events import is_trace, trace_files
from simtrain.guests.traces.kinds import kind_of_kernel, kind_of_op
from simtrain.guests.traces.ranks import TracedIteration, median_iteration, read_rank_traces
from tests.helpers.kineto import Event, kernel, launched, step, write

EVENTS = [
    step(3, 0, 100),
    *launched("void cutlass::Kernel<gemm>(int)", 1, 5, 10, 1),
    *launched("vectorized_elementwise_kernel", 3, 16, 4, 2),
    kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 8, 20, 20, **{"Group size": 16}),
]
WORLD = {"distributedInfo": {"rank": 5, "world_size": 16}}

KINDS = {
    "nvjet_hsh_192x192_64x4_2x1_v_bz_coopB_TNT": "products",
    "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd>>": "attention",
    "void cuda::swiglu_forward_with_weight_and_per_token_cast_to_fp8<>": "activations",
    "void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128>": "casts",
    "void deep_ep::internode::dispatch<false, 8, true, 8>(int4*)": "dispatch",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)": "reduce_scatter",
    "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "void fbgemm_gpu::something_new<float>": "other",
}


@pytest.mark.parametrize("name", KINDS)
def test_names_of_kernels_say_their_kind(name: str) -> None:
    assert kind_of_kernel(name).name == KINDS[name]


def test_ops_and_annotations_say_the_kind_of_generic_kernels() -> None:
    generic = "void at::native::vectorized_elementwise_kernel<4, AUnaryFunctor>"
    assert kind_of_kernel(generic).name == "sums"
    assert kind_of_kernel(generic, "aten::gelu_backward").name == "activations"
    assert kind_of_kernel(generic, "aten::mul_", "Optimizer.step#AdamW.step").name == "optimizer"
    # NCCL runs an all-to-all as sends and receives.
    sends = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)"
    assert kind_of_kernel(sends, "all_to_allv").name == "all_to_all"
    assert kind_of_kernel(sends, "", "nccl:all_to_all").name == "all_to_all"
    assert kind_of_op("aten::scaled_dot_product_attention").name == "attention"  # type: ignore[union-attr]
    assert kind_of_op("autograd::engine::evaluate_function: AddmmBackward0") is None


def test_a_rank_has_kernels_with_launches_kinds_and_groups(tmp_path: pathlib.Path) -> None:
    (rank,) = read_rank_traces(write(tmp_path / "t.json.gz", EVENTS, **WORLD))
    assert (rank.rank, rank.world_size) == (5, 16)
    rows = [(each.kind.name, each.group, each.start_us, each.end_us) for each in rank.kernels]
    assert rows == [("products", 0, 5, 15), ("all_reduce", 16, 8, 28), ("sums", 0, 16, 20)]
    launches = [each.launched_us for each in rank.kernels]
    assert launches[0::2] == [2, 4] and math.isnan(launches[1])
    assert rank.steps == (("ProfilerStep#3", 0, pytest.approx(100)),)


def host_op(name: str, start: float, duration: float, **arguments: Any) -> Event:
    """Return an op on the thread of launches."""
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 9}
    return event | {"ts": start, "dur": duration, "args": arguments}


MANY = "vectorized_elementwise_kernel"
CALL, OF_MANY = launched(MANY, 120, 150, 5, 1)
OTHER_CALL = {**CALL, "args": {"correlation": 2}}
NUMBERED = kernel(MANY, 150, 5, correlation=1, **{"External id": 4})
SAME_NUMBERS = kernel(MANY, 150, 5, correlation=4, **{"External id": 4})
FOURTH = host_op("aten::gelu", 101, 5, **{"External id": 4})
GELU, MUL = host_op("aten::gelu", 118, 4), host_op("aten::mul", 110, 30)
OPTIMIZER = {"cat": "user_annotation", "name": "Optimizer.step#Adam", "tid": 9, "ts": 119, "dur": 2}
# Events, and the kind of the kernel that starts 50 us after the first of them, its op and launch.
LAUNCHES: dict[str, tuple[list[Event], tuple[str, int, float | None]]] = {
    "nothing": ([OF_MANY], ("sums", -1, None)),
    "a launch": ([OF_MANY, CALL], ("sums", -1, 21)),
    "a launch of another": ([OF_MANY, OTHER_CALL], ("sums", -1, None)),
    "a numbered op": ([NUMBERED, FOURTH], ("activations", 0, None)),
    "a numbered op and a launch": ([NUMBERED, FOURTH, CALL, MUL], ("activations", 0, 21)),
    "a number of launches": ([SAME_NUMBERS, FOURTH], ("activations", 0, None)),
    "an op of the launch": (
        [SAME_NUMBERS, FOURTH, CALL | {"args": {"correlation": 4}}, host_op("aten::sum", 119, 3)],
        ("sums", 0, 21),
    ),
    "the innermost op": ([OF_MANY, CALL, MUL, GELU], ("activations", 0, 21)),
    "ops that begin together": (
        [OF_MANY, CALL, host_op("aten::gelu", 110, 20), MUL],
        ("activations", 0, 21),
    ),
    "an op that ends with the launch": ([OF_MANY, CALL, GELU | {"dur": 2}], ("activations", 0, 21)),
    "an op that ends before": ([OF_MANY, CALL, GELU | {"dur": 1.9}], ("sums", -1, 21)),
    "an op that begins with it": ([OF_MANY, CALL, GELU | {"ts": 120}], ("activations", 0, 21)),
    "an op of another thread": ([OF_MANY, CALL, GELU | {"tid": 8}], ("sums", -1, 21)),
    "an op of the optimizer": ([OF_MANY, CALL, GELU, OPTIMIZER], ("optimizer", -1, 21)),
    "an optimizer before": ([OF_MANY, CALL, OPTIMIZER | {"ts": 110}], ("sums", -1, 21)),
    "64 ops before": (
        [OF_MANY, CALL, MUL | {"name": "aten::gelu"}, *[host_op("aten::add", 111, 1)] * 63],
        ("activations", 0, 21),
    ),
    "65 ops before": (
        [OF_MANY, CALL, MUL | {"name": "aten::gelu"}, *[host_op("aten::add", 111, 1)] * 64],
        ("sums", -1, 21),
    ),
}


@pytest.mark.parametrize("case", LAUNCHES)
def test_the_op_of_a_launch_says_the_kind(case: str, tmp_path: pathlib.Path) -> None:
    events, expected = LAUNCHES[case]
    (rank,) = read_rank_traces(write(tmp_path / "t.json", [step(0, 100, 90), *events]))
    (each,) = rank.kernels
    launched_us = None if math.isnan(each.launched_us) else each.launched_us
    assert (each.kind.name, each.op, launched_us) == expected
    assert (each.start_us, each.end_us, each.stream, each.group) == (50, 55, "7", 0)


GATHER, SENDS = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_SendRecv"
GROUP = {"Process Group Name": "g" * 101, "Process Group Ranks": "r" * 1001}
ENDS = {"Src Rank": 0, "Dst Rank": (1 << 31) - 1}
MEETINGS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "a group": (GATHER, GROUP | {"Group size": 1}, 1, f"{'g' * 100} {'r' * 1000}"),
    "no text": (GATHER, {"Process Group Ranks": [0, 1], "Group size": True}, 0, ""),
    "a largest group": (GATHER, {"Group size": (1 << 31) - 1}, (1 << 31) - 1, ""),
    "a larger group": (GATHER, {"Group size": 1 << 31}, 0, ""),
    "ends": (SENDS, GROUP | ENDS, 0, f"0 to {(1 << 31) - 1}"),
    "one end": (SENDS, GROUP | ENDS | {"Src Rank": -1}, 0, ""),
    "ends of a group": (GATHER, GROUP | ENDS, 0, f"{'g' * 100} {'r' * 1000}"),
    "no communication": ("cutlass_gemm", GROUP | ENDS | {"Group size": 2}, 0, ""),
}


@pytest.mark.parametrize("case", MEETINGS)
def test_who_meets_in_a_kernel(case: str, tmp_path: pathlib.Path) -> None:
    name, arguments, group, meets = MEETINGS[case]
    file = write(tmp_path / "t.json", [kernel(name, 0, 1, **arguments)])
    ((each,),) = (rank.kernels for rank in read_rank_traces(file))
    assert (each.group, each.meets) == (group, meets)


def test_processes_are_ranks_if_their_names_say_so(tmp_path: pathlib.Path) -> None:
    """Else they are the devices of one rank, which has the steps of all."""
    events: list[Event] = []
    for process, duration in ((2, 5), (1, 9)):
        own = [step(process, 10, 30), kernel("gemm", 12, duration), kernel("gemm", 12, 1)]
        events += [event | {"pid": process} for event in own]
    one = {"args": {"name": "rank 31, x"}, "ph": "M", "name": "process_name"}
    (whole,) = read_rank_traces(write(tmp_path / "t.json", events, distributedInfo=[1]))
    assert [each.end_us for each in whole.kernels] == [3, 3, 7, 11]
    assert [each.name for each in whole.steps] == ["ProfilerStep#2", "ProfilerStep#1"]
    names = [one | {"pid": 1}, one | {"pid": 2, "args": {"name": "rank 4"}}, one | {"pid": 3}]
    several = read_rank_traces(write(tmp_path / "t.json", [*events, *names]))
    found = [(rank.rank, rank.steps[0].name, rank.kernels[1].end_us) for rank in several]
    assert found == [(31, "ProfilerStep#1", 11), (4, "ProfilerStep#2", 7)]
    assert [(len(rank.steps), len(rank.kernels)) for rank in several] == [(1, 2), (1, 2)]


@pytest.mark.parametrize(("times", "median"), [((5, 1, 4, 2), 2), ((5, 1, 4, 2, 3), 3), ((7,), 7)])
def test_the_median_iteration_is_the_faster_of_two(times: tuple[int, ...], median: int) -> None:
    iterations = [TracedIteration("", 1, 1 + time, ()) for time in times]
    assert median_iteration(iterations).end_us == 1 + median


NO_TIMES = (True, "1", None, math.nan)
DURATIONS = [(each, 0.0) for each in (*NO_TIMES, 0, -1, 1e12)] + [(1e-3, 1e-9), (9e11, 9e5)]
BEGINS = [(each, None) for each in (*NO_TIMES, 1e17, -1e17)]


def test_times_that_no_event_can_have_are_none() -> None:
    assert [events.duration_s({"dur": dur}) for dur, _ in DURATIONS] == [s for _, s in DURATIONS]
    assert [events.begin_us({"ts": each}) for each, _ in BEGINS] == [None] * len(BEGINS)
    assert [events.begin_us({"ts": each}) for each in (-9e16, 0, 9e16)] == [-9e16, 0, 9e16]
    assert [events.whole_number({"args": {"x": each}}, "x") for each in (True, 1.0, 3)] == [
        None,
        None,
        3,
    ]


def test_packed_listed_and_bare_traces_read_alike(tmp_path: pathlib.Path) -> None:
    whole = read_rank_traces(write(tmp_path / "t.json", EVENTS))[0].kernels
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(EVENTS), "utf-8")
    spread = tmp_path / "spread.json"
    spread.write_text(json.dumps({"traceEvents": EVENTS, "later": [1, {"a": 2}]}, indent=3))
    packed = write(tmp_path / "t.json.gz", EVENTS)
    for file in (bare, spread, packed):
        assert repr(read_rank_traces(file)[0].kernels) == repr(whole)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no JSON"),
        (b'{"traceEvents": 3}', "no list traceEvents"),
        (b'{"traceEvents": [{"ph": "X"}', "no JSON"),
        (b'{"traceEvents": [' + b"[" * 100_000, "no JSON"),
        (b'{"traceEvents": [{"dur": ' + b"9" * 5000 + b"}]}", "no JSON"),
        (gzip.compress(b'{"traceEvents": [' + b" " * (6 << 20) + b"]}", mtime=0), "4 MiB unpacked"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "no JSON"),
        (b'{"traceEvents": []}', "no kernels of a device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_files_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str
) -> None:
    """The limit is lower here, to save time."""
    monkeypatch.setattr(events, "_ALWAYS_UNPACKED", 1 << 22)
    file = tmp_path / "trace.json.gz"
    file.write_bytes(content)
    with pytest.raises(InputError, match="E726") as caught:
        read_rank_traces(file)
    assert reason in str(caught.value)


def test_traces_are_told_from_other_files(tmp_path: pathlib.Path) -> None:
    trace = write(tmp_path / "t.json", EVENTS)
    packed = write(tmp_path / "t.json.gz", EVENTS)
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}', "utf-8")
    late, text, empty = (tmp_path / name for name in ("late.json", "t.txt", "empty.json"))
    late.write_bytes(b" " * ((1 << 16) - 13) + trace.read_bytes())
    text.write_bytes(trace.read_bytes())
    empty.mkdir()
    assert not any(map(is_trace, (late, text, empty, tmp_path / "missing.json")))
    assert is_trace(trace) and is_trace(packed) and is_trace(tmp_path)
    assert not is_trace(config) and not is_trace(tmp_path / "missing.yaml")
    assert trace_files(tmp_path) == [packed]
