"""What runs on CUDA, on a stand-in of its streams and events."""

from types import SimpleNamespace
from typing import Any

import pytest

from calibrate.benchmarks.collectives import _cuda_beside
from calibrate.benchmarks.timing import Timer
from calibrate.memory.measure import CudaAllocator
from tests.helpers.cuda_stand_in import CudaStandIn

pytestmark = pytest.mark.slow  # imports torch


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaStandIn:
    return CudaStandIn(monkeypatch)


def test_a_time_is_that_of_the_device_not_of_the_host(cuda: CudaStandIn) -> None:
    """Kernels of 1 and 3 ms in turn, which the host queues in no time: 2 ms each."""
    timing = Timer("cuda", 0.01).time([lambda: cuda.launch(1e-3), lambda: cuda.launch(3e-3)])
    assert timing.median_s == pytest.approx(2e-3)
    assert timing.spread_s == pytest.approx(0, abs=1e-12)


def test_the_device_is_busy_until_a_sample_is_queued(cuda: CudaStandIn) -> None:
    Timer("cuda", 0.01).time([lambda: cuda.launch(1e-3)])
    samples = "".join({"synchronize": "s", "sleep": "-", "kernel": "k"}[c] for c in cuda.calls)
    first = samples.index("-")
    assert all(sample.startswith("-k") for sample in samples[first:].split("s") if sample)


def test_collectives_run_beside_products(cuda: CudaStandIn) -> None:
    """3 ms of products on the computing stream, 5 ms of collectives on another one."""

    def start_all() -> list[Any]:
        cuda.launch(5e-3)
        return [SimpleNamespace(wait=lambda: None)]

    taken = _cuda_beside(lambda: cuda.launch(3e-3), start_all)
    assert taken == pytest.approx((3e-3, 5e-3))


def test_a_peak_begins_with_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda name=name: calls.append(name))
    for name, value in {"memory_allocated": 1, "max_memory_allocated": 2}.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda value=value: value)
    allocator = CudaAllocator()
    allocator.reset_peak()
    assert calls == ["synchronize", "empty_cache", "reset_peak_memory_stats"]
    assert (allocator.held_bytes, allocator.peak_bytes) == (1, 2)
