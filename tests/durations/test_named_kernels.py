"""Kernels with separate bandwidths: bytes counted by hand, and the bandwidth of each kernel."""

import pytest

from simtrain.base.entry import Entry
from simtrain.base.strict_yaml import FieldError
from simtrain.durations.model import DurationModel
from simtrain.hardware.profile import HardwareProfile, check_contradictions
from simtrain.hardware.sections import KernelBandwidths, NamedKernels
from simtrain.units import parse_bytes_per_s
from simtrain.workload.work import Elementwise, KernelFamily
from tests.helpers.small_layers import GPT, LLAMA, scenario
from tests.helpers.toys import a100, changed, chunk_with, ops_of, pass_with

S, B, H, HEADS, GROUPS, FFN, VOCAB = 32, 2, 64, 4, 2, 96, 256
ROWS = S * B
BF16, FP32, MASK = 2, 4, 1
US = 1e-6


def with_kernels(**kernels: KernelBandwidths) -> HardwareProfile:
    profile = changed(
        a100(),
        memory_bound__kernel_latency=3 * US,
        memory_bound__fused_bandwidth=1e12,
        memory_bound__stream_bandwidth=2e12,
    )
    memory = profile.memory_bound.model_copy(update={"kernels": NamedKernels(**kernels)})
    return profile.model_copy(update={"memory_bound": memory})


def bandwidth(value: str) -> Entry[float]:
    return Entry(value=parse_bytes_per_s(value), source="a test")


def bytes_by_kernel(model: dict[str, object]) -> dict[tuple[str, bool], set[int]]:
    """Return the bytes of kernels by family and direction, without the two general families."""
    one, found = scenario(model, "megatron_2022"), dict[tuple[str, bool], set[int]]()
    chunk = chunk_with(one, 1, head=True)
    for kind in ("F", "B"):
        for op in ops_of(pass_with(one, chunk, kind)):
            if isinstance(op.work, Elementwise) and op.work.family not in ("fused", "stream"):
                key = op.work.family.value, op.work.is_backward
                found.setdefault(key, set()).add(op.work.moved_bytes)
    return found


def test_bytes_of_llama_kernels_equal_the_published_counts() -> None:
    """calibrate/published/h100_sxm.yaml counts each array once."""
    elements, channels = BF16 * ROWS * H, BF16 * ROWS * H // HEADS
    gate = BF16 * ROWS * FFN
    logits = ROWS * VOCAB
    found = bytes_by_kernel(LLAMA)
    together = found.pop(("cross_entropy", False)), found.pop(("cross_entropy", True))
    assert found == {
        ("rms_norm", False): {2 * elements},
        ("rms_norm", True): {3 * elements},
        ("swiglu", False): {3 * gate},
        ("swiglu", True): {5 * gate},
        ("rotary", False): {2 * HEADS * channels, 2 * GROUPS * channels},
        ("rotary", True): {2 * HEADS * channels, 2 * GROUPS * channels},
        ("softmax", False): {3 * BF16 * HEADS * B * S * S // 2},
        ("softmax", True): {2 * BF16 * HEADS * B * S * S},
    }
    # Kernels of the loss convert (cast), read (maximum, sum), or read and write (subtraction,
    # exponentials, softmax, gradient).
    cast, read, both = BF16 + FP32, FP32, 2 * FP32
    assert together == (
        {size * logits for size in (cast, read, both)},
        {cast * logits, both * logits},
    )


def test_bytes_of_gpt_kernels_equal_the_published_counts() -> None:
    elements, scores = BF16 * ROWS * H, HEADS * B * S * S
    found = bytes_by_kernel(GPT)
    assert found["layer_norm", False] == {2 * elements}
    assert found["layer_norm", True] == {3 * elements}
    for is_backward in (False, True):
        assert found["dropout", is_backward] == {(2 * BF16 + MASK) * scores}


def test_a_kernels_own_bandwidth_precedes_its_familys() -> None:
    own = KernelBandwidths(forward=bandwidth("4 TB/s"))
    model = DurationModel(with_kernels(swiglu=own, cast=own, chunk_scan=own))

    def seconds(family: KernelFamily, *, is_backward: bool) -> float:
        return model.seconds(Elementwise(3_000_000, 1_000_000, family, is_backward)) - 3 * US

    for family in (KernelFamily.SWIGLU, KernelFamily.CAST):
        assert seconds(family, is_backward=False) == pytest.approx(1 * US)
    assert seconds(KernelFamily.SWIGLU, is_backward=True) == pytest.approx(4 * US)
    assert seconds(KernelFamily.CHUNK_SCAN, is_backward=True) == pytest.approx(1 * US)
    assert seconds(KernelFamily.CAST, is_backward=True) == pytest.approx(2 * US)
    assert seconds(KernelFamily.RMS_NORM, is_backward=False) == pytest.approx(4 * US)


def test_no_kernel_is_faster_than_the_memory() -> None:
    faster = with_kernels(softmax=KernelBandwidths(backward=bandwidth("2.5 TB/s")))
    with pytest.raises(FieldError, match=r"2.5 TB/s is above gpu.memory_bandwidth") as bad:
        check_contradictions(faster)
    assert bad.value.path == ("memory_bound", "kernels", "softmax", "backward", "value")
