"""Traces of PyTorch's profiler become records; what cannot is counted."""

import gzip
import json
import pathlib
import random
from typing import Any

import pytest

from calibrate.fit.sources import SourceKind, by_kind, machine_records
from calibrate.records import kineto
from calibrate.records.file import RecordFile
from calibrate.records.kineto import read_trace
from calibrate.records.schema import AttentionRecord, CollectiveRecord, GemmRecord
from simtrain.errors import InputError

BF16 = "c10::BFloat16"
DEVICE = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85 << 30, "numSms": 132}


def op(number: int, name: str, dims: list[Any], strides: list[Any] | None = None) -> dict[str, Any]:
    arguments = {"External id": number, "Input Dims": dims, "Input type": [BF16] * len(dims)}
    arguments |= {"Input Strides": strides} if strides else {}
    return {"cat": "cpu_op", "name": name, "args": arguments}


def kernel(number: int, microseconds: float, name: str = "gemm", **more: Any) -> dict[str, Any]:
    arguments = {"External id": number, "correlation": 10_000 + number, **more}
    return {"cat": "kernel", "name": name, "dur": microseconds, "args": arguments}


def reduced(microseconds: float, ranks: str) -> dict[str, Any]:
    more = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "BFloat16"}
    more |= {"Group size": 16, "Process Group Ranks": ranks}
    return kernel(99, microseconds, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", **more)


LINEAR = [[2048, 1], [1, 4096]]
"""Strides of x[.., 2048] and of the transposed weight[.., 4096]: layout TN."""
EVENTS = [
    op(1, "aten::mm", [[512, 2048], [2048, 4096]], LINEAR),
    kernel(1, 100.0),
    op(2, "aten::mm", [[512, 2048], [2048, 4096]], LINEAR),
    kernel(2, 120.0),
    op(3, "aten::bmm", [[8, 64, 32], [8, 32, 64]]),
    kernel(3, 10.0),
    kernel(3, 5.0, "splitKreduce"),
    op(4, "aten::_scaled_dot_product_flash_attention", [[2, 16, 1024, 128]] * 3),
    kernel(4, 50.0, "flash_fwd"),
    op(5, "aten::_scaled_dot_product_flash_attention_backward", [[2, 16, 1024, 128]] * 4),
    kernel(5, 130.0, "flash_bwd"),
    op(6, "aten::add", [[512, 2048]]),
    kernel(6, 7.0, "elementwise"),
    *(reduced(duration, f"{[*range(16)]}") for duration in (400.0, 90.0, 100.0, 700.0)),
]


def trace(tmp_path: pathlib.Path, **changes: Any) -> pathlib.Path:
    document = {"traceEvents": EVENTS, "deviceProperties": [DEVICE]}
    document |= {"distributedInfo": {"backend": "nccl", "world_size": 16}}
    file = tmp_path / "rank0.json.gz"
    file.write_bytes(gzip.compress(json.dumps(document | changes).encode(), mtime=0))
    return file


def test_kernels_become_records_of_their_shapes(tmp_path: pathlib.Path) -> None:
    read = read_trace(trace(tmp_path))
    product, batched, attention = (
        record for record in read.records if not isinstance(record, CollectiveRecord)
    )
    assert isinstance(product, GemmRecord) and isinstance(batched, GemmRecord)
    assert (product.m, product.n, product.k, product.layout) == (512, 4096, 2048, "TN")
    assert product.time.median_s == pytest.approx(110e-6) and product.time.num_samples == 2
    assert (batched.batch, batched.m, batched.n, batched.k) == (8, 64, 64, 32)
    assert batched.time.median_s == pytest.approx(15e-6)  # both kernels of the op
    assert isinstance(attention, AttentionRecord)
    assert (attention.heads, attention.seq_length, attention.head_size) == (32, 1024, 128)
    assert attention.backward.median_s == pytest.approx(130e-6)
    assert read.left_out == pytest.approx({"kernels of other ops": 7e-6})
    assert (read.header.num_ranks, read.header.num_nodes) == (16, 2)


def test_the_faster_half_of_a_collectives_times_counts(tmp_path: pathlib.Path) -> None:
    """The others wait for the slowest rank: of 90, 100, 400 and 700 microseconds the first two."""
    for gpus_per_node, num_nodes in ((8, 2), (16, 1)):
        records = read_trace(trace(tmp_path), gpus_per_node).records
        (record,) = (each for each in records if isinstance(each, CollectiveRecord))
        assert (record.op, record.array_bytes, record.num_ranks) == ("all_reduce", 2 << 20, 16)
        assert record.num_nodes == num_nodes
        assert record.time.median_s == pytest.approx(95e-6)


def test_in_older_traces_the_op_encloses_the_launch(tmp_path: pathlib.Path) -> None:
    outer = op(1, "aten::linear", [[512, 2048]]) | {"ts": 0, "dur": 90, "tid": 7}
    inner = op(2, "aten::mm", [[512, 64], [64, 32]]) | {"ts": 10, "dur": 30, "tid": 7}
    launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20, "dur": 5, "tid": 7}
    launch |= {"args": {"External id": 555, "correlation": 555}}
    kernel_of_it = {"cat": "kernel", "name": "gemm", "dur": 40.0}
    kernel_of_it |= {"args": {"External id": 555, "correlation": 555}}
    (record,) = read_trace(
        trace(tmp_path, traceEvents=[outer, inner, launch, kernel_of_it])
    ).records
    assert isinstance(record, GemmRecord) and (record.m, record.n, record.k) == (512, 32, 64)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is no JSON"),
        (b"{}", "no list traceEvents"),
        (b"[]", "ProfilerActivity.CUDA"),
        (b"\x1f\x8bcut", "it is no JSON"),
        (json.dumps({"traceEvents": []}).encode(), "ProfilerActivity.CUDA"),
        (json.dumps({"traceEvents": EVENTS}).encode(), "which device ran it"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: pathlib.Path, content: bytes, reason: str) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match="E726") as caught:
        read_trace(file)
    assert reason in str(caught.value)


def test_damaged_traces_are_read_or_refused(tmp_path: pathlib.Path) -> None:
    rng, file = random.Random(0), tmp_path / "trace.json"
    whole = {"traceEvents": EVENTS, "deviceProperties": [DEVICE]}
    junk = [None, -1, 10**400, 1e308, "x", [], {}, True, [[0]], [[-3, 2], [2]]]
    for _ in range(300):
        document = json.loads(json.dumps(whole))
        event = rng.choice(document["traceEvents"] + document["deviceProperties"])
        place = rng.choice([event, event.get("args", event)])
        place[rng.choice([*place])] = rng.choice(junk)
        file.write_text(json.dumps(document), "utf-8")
        try:
            read_trace(file)
        except InputError as error:
            assert "E726" in str(error)


def test_traces_and_logs_join_the_records_of_a_folder(tmp_path: pathlib.Path) -> None:
    """Each record counts once; sources of another device are refused."""
    path = trace(tmp_path)
    read = read_trace(path)
    machine = machine_records(by_kind([path]), 8)
    assert (machine.header, [*machine.records]) == (read.header, [*read.records])
    (reason,) = machine.left_out
    assert reason.endswith("rank0.json.gz: 7 µs of kernels of other ops")
    folder = tmp_path / "measured"
    file = RecordFile(folder, read.header)
    for record in read.records[:2]:
        file.write(record)
    kinds = by_kind([path, folder])
    assert [*kinds] == [SourceKind.TRACE, SourceKind.FOLDER]
    assert len(machine_records(kinds, 8).records) == 4
    other = trace(tmp_path, deviceProperties=[DEVICE | {"name": "NVIDIA A100-SXM4-80GB"}])
    with pytest.raises(InputError, match="E712 it is of another machine"):
        machine_records(by_kind([folder, other]), 8)


LENGTHS = [[2, 8, 9, 4], [2, 8, 9, 4], [2, 8, 7, 4]]
WORKS = [
    ("aten::_scaled_dot_product_efficient_attention", LENGTHS, None, "attention between"),
    ("aten::addmm", [[64], [512, 64], [64, 32]], [[1], [64, 1], [1, 64]], (512, 32, 64, 1, "TN")),
    ("aten::mm", [[512, 64], [64, 32]], [[64, 1], [32, 1]], (512, 32, 64, 1, "NN")),
    ("aten::baddbmm", [[1], [8, 5, 6], [8, 6, 7]], [[1], [30, 1, 5], [1, 1]], (5, 7, 6, 8, "NT")),
    ("aten::bmm", [[8, 5, 6], [8, 6, 7]], None, (5, 7, 6, 8, "TN")),
    ("aten::mm", [[512, 64]], [[64, 1]], "products in other data types"),
    ("aten::mm", None, None, "kernels without shapes"),
]


@pytest.mark.parametrize(("name", "dims", "strides", "work"), WORKS)
def test_the_work_of_an_op_by_hand(name: str, dims: Any, strides: Any, work: Any) -> None:
    found = kineto._work(op(1, name, dims or [], strides) if dims else {"name": name})
    said: Any = found if isinstance(found, str) else found[1]
    names = ("m", "n", "k", "batch", "layout")
    assert said.startswith(work) if isinstance(work, str) else work == tuple(map(said.get, names))


SIZES = [
    ({"dtype": "Float", "Process Group Ranks": "[0, 8, 16]"}, 4 << 20, 3),
    ({"dtype": "Double", "Process Group Ranks": "[7]"}, 8 << 20, 1),
    ({"Group size": 17, "Process Group Ranks": "..."}, 2 << 20, 3),
    ({"Collective name": "_allgather_base"}, 20, 2),
    ({"Group size": 2, "In msg nelems": 1}, 2, 2),
    *(({name: 1}, None, 0) for name in ("Group size", "dtype", "Collective name")),
    *(({"In msg nelems": bad}, None, 0) for bad in (0, True, 1.5, "1")),
]


@pytest.mark.parametrize(("changes", "num_bytes", "nodes"), SIZES)
def test_the_size_and_nodes_of_a_collective_by_hand(
    changes: dict[str, Any], num_bytes: int | None, nodes: int
) -> None:
    arguments = reduced(1.0, f"{[*range(16)]}")["args"] | {"Out msg nelems": 10} | changes
    found = kineto._collective(arguments, 8)
    sizes = (None, 0) if isinstance(found, str) else (found["array_bytes"], found["num_nodes"])
    assert sizes == (num_bytes, nodes)
