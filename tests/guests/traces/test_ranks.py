"""Traces of PyTorch's profiler: their events, kinds of kernels, ranks; damaged ones are refused."""

import gzip
import json
import math
import pathlib

import pytest

from simtrain.errors import InputError
from simtrain.guests.traces import events
from simtrain.guests.traces.events import is_trace, trace_files
from simtrain.guests.traces.kinds import kind_of_kernel, kind_of_op
from simtrain.guests.traces.ranks import read_rank_traces
from tests.helpers.kineto import kernel, launched, step, write

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
    assert is_trace(trace) and is_trace(packed) and is_trace(tmp_path)
    assert not is_trace(config) and not is_trace(tmp_path / "missing.yaml")
    assert trace_files(tmp_path) == [packed]
