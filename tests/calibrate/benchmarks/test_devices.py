"""What GPUs and other ranks would do, by stand-ins for torch.cuda and its groups of ranks."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from calibrate.benchmarks import collectives, iterations, measure, timing
from calibrate.benchmarks.ranks import Ranks, joined
from calibrate.benchmarks.sizes import sizes_for
from calibrate.benchmarks.timing import Timer
from calibrate.records.schema import Timing
from simtrain.errors import InputError
from tests.helpers.measured_records import took

pytestmark = pytest.mark.slow
GIB, H100 = 1 << 30, "NVIDIA H100 80GB HBM3"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU whose clock moves by what kernels add to `now_s`; calls of torch.cuda are listed."""
    device = SimpleNamespace(now_s=0.0, calls=[])

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, *streams: Any) -> None:
            self.at_s = device.now_s

        def elapsed_time(self, end: Any) -> float:
            return 1e3 * float(end.at_s - self.at_s)  # milliseconds

    def call(name: str, result: Any) -> Callable[..., Any]:
        return lambda *args: device.calls.append((name, *args)) or result

    sizes = {"multi_processor_count": 132, "total_memory": 80 * GIB, "uuid": "1-2"}
    nothing = "synchronize", "_sleep", "empty_cache", "reset_peak_memory_stats", "set_device"
    results: dict[str, Any] = dict.fromkeys(nothing) | {"is_available": True, "device_count": 2}
    results |= {"get_device_name": H100, "get_device_properties": SimpleNamespace(**sizes)}
    results |= {"max_memory_allocated": 10 * GIB, "memory_allocated": GIB}
    for name, result in results.items():
        monkeypatch.setattr(torch.cuda, name, call(name, result))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return device


# Two warmups, then rounds of 50 samples: runs of 1 ms repeat to 5 ms, on GPUs to 2 ms. No
# sample has more than 200 runs. Of work above a fifth of the budget there are three samples.
COUNTS = [("cpu", 1e-3, 1.0, 2 + 2 * 50 * 5), ("cuda", 1e-3, 1.0, 2 + 2 * 50 * 2)]
COUNTS += [("cpu", 1e-6, 1e-9, 2 + 3 * 200), ("cpu", 0.25, 4.0, 2 + 2 * 8)]
COUNTS += [("cpu", 0.5, 4.0, 2 + 2 * 5), ("cpu", 1.0, 4.0, 2 + 2 * 3)]


@pytest.mark.parametrize(("device", "run_s", "budget_s", "calls"), COUNTS)
def test_the_runs_of_a_time_by_hand(
    device: str, run_s: float, budget_s: float, calls: int, gpu: Any, monkeypatch: Any
) -> None:
    counted: list[Any] = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: gpu.now_s)
    timer = Timer(device, budget_s, clock=lambda: 0.0)
    found = timer.time([lambda: counted.append(setattr(gpu, "now_s", gpu.now_s + run_s))])
    assert found.median_s == pytest.approx(run_s)
    assert len(counted) == calls
    # The GPU is busy for twice as long as the host needs to queue a sample.
    spins = {cycles for name, *args in gpu.calls if name == "_sleep" for cycles in args}
    assert spins == ({int(2 * 2 * run_s * 2e9)} if device == "cuda" else set())


def test_a_busy_machine_ends_a_time_after_five_budgets(gpu: Any) -> None:
    clock, taken = iter(map(float, range(100))), [0.0]
    timer = Timer("cpu", 1.0, clock=lambda: next(clock))
    timer._undisturbed(lambda: taken.append(1.0) or [1.0], 0.01)
    timing.spin(9.0)
    # No spin is longer than a tenth of a second, of a clock of 2 GHz.
    assert len(taken) == 1 + 5 and gpu.calls == [("_sleep", 2e8)]
    assert [Timer("cuda", 1.0).copies(size) for size in (1, 64 << 20, GIB)] == [64, 5, 2]


def test_the_time_between_products_is_never_nothing() -> None:
    both = [took(8.0, 0.3 / 8), took(8.08, 0.4 / 8.08)]
    timer: Any = SimpleNamespace(time_parts=lambda parts: both)
    found = collectives._time_between(lambda: None, lambda: None, timer)
    assert [found.median_s, found.spread_s] == pytest.approx([0.05 * 8.08 / 8, 0.5 / 8])


def test_torchruns_environment_names_the_ranks(gpu: Any, monkeypatch: Any) -> None:
    made: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: made.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: made.append("ended"))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    names = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with joined("cuda") as ranks:
        assert (ranks, ranks.num_nodes, ranks.is_first) == (Ranks(3, 4, 2), 2, False)
    for error, kind in (("Gloo closed", InputError), ("another", RuntimeError)):
        with pytest.raises(kind, match=error), joined("cpu"):
            raise RuntimeError(error)
    assert made == ["cpu:gloo,cuda:nccl", "ended", *["gloo", "ended"] * 2]
    assert ("set_device", 1) in gpu.calls


def test_the_header_of_a_gpu(gpu: Any, monkeypatch: Any) -> None:
    done = SimpleNamespace(returncode=0, stdout="550.54, 1, 2, 3, 4, 5, 6")
    monkeypatch.setattr(measure.shutil, "which", lambda name: name)
    monkeypatch.setattr(measure.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(measure.torch, "randn", lambda *_, **__: torch.ones(2, 2))
    monkeypatch.setattr(measure, "_WARM_UP_S", 0.0)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 21, 5))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(sys, "argv", ["x", "calibrate", "measure", "-o", "a b"])
    found = measure.header("cuda", Ranks(0, 16, 8), "fp16")
    assert (found.device, found.backend, found.compute) == (H100, "nccl", "fp16")
    assert (found.num_ranks, found.num_nodes, found.num_sms) == (16, 2, 132)
    assert (found.memory_bytes, found.conditions["power.limit"]) == (80 * GIB, "6")
    assert found.command == "torchrun --nnodes 2 --nproc-per-node 8 -m calibrate measure -o 'a b'"
    assert (found.software["driver"], found.software["nccl"]) == ("550.54", "2.21.5")
    done.stdout = "no devices"
    assert "driver" not in measure.header("cuda", Ranks()).software


@pytest.mark.parametrize(("slowest_s", "num_samples"), [(1.0, 4), (4.0, 2), (2.5, 3)])
def test_slow_iterations_are_fewer_but_two(
    slowest_s: float, num_samples: int, gpu: Any, monkeypatch: Any
) -> None:
    """Two warmups count to the ten seconds after which none begins."""
    training = SimpleNamespace(iteration=lambda: None)
    monkeypatch.setattr(iterations, "TrainingRank", lambda scenario, device: training)
    monkeypatch.setattr(iterations, "leave_workspaces", lambda: None)
    monkeypatch.setattr(Timer, "once", lambda timer, run: [0.5, slowest_s])
    case = iterations.iteration_cases(1, sizes_for("cpu", quick=True))[0]
    found = iterations.measure_iteration(case, Timer("cuda", 1.0), 4)
    assert found["time"] == Timing(median_s=slowest_s, spread_s=0.0, num_samples=num_samples)
    assert found["peak_bytes"] == 9 * GIB
    assert "peak_bytes" not in iterations.measure_iteration(case, Timer("cpu", 1.0), 4)
