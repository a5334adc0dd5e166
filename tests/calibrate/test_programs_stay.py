"""What measurements run and what fits say: points, torch's ops with their sizes, and errors."""

import itertools
import math
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calibrate.benchmarks.measure import points_of
from calibrate.benchmarks.ranks import Ranks
from calibrate.benchmarks.sizes import BenchmarkPart, sizes_for
from calibrate.benchmarks.timing import Run, Timer, random_data, summary
from calibrate.fit.from_records import fit_measurements
from calibrate.fit.network import Load
from calibrate.fit.published import fit_figures
from calibrate.memory.cases import case
from calibrate.memory.measure import measure
from calibrate.records.schema import GemmRecord, Measurement, Timing
from calibrate.torch_model.training import TrainingRank
from simtrain.durations.model import GemmMachine
from tests.helpers.measure_tiny import TINY
from tests.helpers.measured_records import A100, alone, gemms, header, kernels, linked, took
from tests.helpers.network_records import crossing
from tests.helpers.training_ranks import EXPERTS, LLAMA, MODEL, scenario

pytestmark = pytest.mark.slow
torch.set_num_threads(1)
ROOT = pathlib.Path(__file__).parents[2]


class Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts ops with the bytes of its tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_ops, self.num_bytes, self.scalars = 0, 0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.num_ops += 1
        for value in tree_leaves([args, kwargs or {}, result]):
            if isinstance(value, torch.Tensor):
                self.num_bytes += value.nbytes
            elif isinstance(value, bool | int | float):
                self.scalars += value if abs(value) < 1e9 else 0
        return result

    @property
    def text(self) -> str:
        return f"{self.num_ops} ops, {self.num_bytes} bytes, scalars {self.scalars:.6g}"


def numbers(data: Any) -> float:
    """Return the sum of all numbers in plain data."""
    return sum(each for each in tree_leaves(data) if isinstance(each, bool | int | float))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_points_stay(device: str, nodes: int, snapshot: SnapshotAssertion) -> None:
    for compute, quick, ranks in (("bf16", True, 4), ("fp32", True, 1), ("fp16", False, 8)):
        sizes = replace(sizes_for(device, quick=quick), compute=compute)  # type: ignore[arg-type]
        timer = Timer(device, sizes.budget_s, Ranks(0, ranks * nodes, ranks))
        assert (sizes.budget_s, sizes.num_iterations, sizes.host_bytes) == snapshot
        kinds: dict[str, list[Any]] = {}
        for point in points_of([*BenchmarkPart], sizes, timer):
            kinds.setdefault(point.kind.__name__, []).append(point.what)
        said = (f"{kind}: {len(all_)}, {numbers(all_)}" for kind, all_ in kinds.items())
        assert "\n".join(said) == snapshot


class Once(Timer):
    """Runs each run once, and knows no clock."""

    def time(self, runs: Any) -> Any:
        for run in runs:
            run()
        return summary([1.0, 2.0, 4.0])

    def time_parts(self, parts: Any) -> Any:
        return [self.time([part]) for part in parts]

    def once(self, *runs: Run) -> list[float]:
        self.time(runs)
        return [1.0, 2.0]


def test_the_ops_of_measurements_stay(snapshot: SnapshotAssertion) -> None:
    parts = [BenchmarkPart.PRODUCTS, BenchmarkPart.KERNELS, BenchmarkPart.LAYERS]
    lines = []
    random_data.cache_clear()
    with patch("calibrate.benchmarks.timing._CACHE_BYTES", {"cpu": 1 << 18}):
        for point in points_of(parts, TINY, Once("cpu", 0.01)):
            with Log() as log:
                record = point.record()
            if record.kind != "launch":
                lines.append(f"{record.kind}: {log.text}, {numbers(record.model_dump())}")
    assert "\n".join(lines) == snapshot
    random_data.cache_clear()


@contextmanager
def ranks(rank: int, number: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=number)
    try:
        yield
    finally:
        dist.destroy_process_group()


SPLITS: list[tuple[Any, dict[str, Any]]] = [
    (MODEL, {"tensor": 2, "pipeline": 2}),
    (MODEL, {"tensor": 2, "sequence_parallel": True}),
    (LLAMA, {"tensor": 2, "sequence_parallel": True, "pipeline": 2}),
    (EXPERTS, {}),
]


@pytest.mark.parametrize("number", range(len(SPLITS)))
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_the_ops_of_an_iteration_stay(
    number: int, recompute: str, snapshot: SnapshotAssertion
) -> None:
    model, split = SPLITS[number]
    each = scenario(tied=model is MODEL, recompute=recompute, model=model, **split)
    for rank in sorted({0, each.num_gpus - 1}):
        with ranks(rank, each.num_gpus):
            training = TrainingRank(each, "cpu", torch.float32)
            with Log() as log:
                training.iteration()
        assert log.text == snapshot


def test_the_memory_of_models_stays(snapshot: SnapshotAssertion) -> None:
    policies = "none", "selective", {"strategy": "full", "method": "block", "num_layers": 1}
    for model, policy in itertools.product((MODEL, LLAMA, EXPERTS), policies):
        what = case(model, policy, micro=2, whole=model is not MODEL)
        said = what.name, what.recompute, what.simulated(), measure(what, "meta")[0]
        assert "\n".join(map(str, said)) == snapshot


def noisy(records: list[Measurement]) -> list[Any]:
    """Records whose times are up to a tenth longer, each by its place."""
    noise = (1.05 + 0.05 * math.sin(place) for place in itertools.count())

    def later(time: Any) -> Any:
        return took(time.median_s * next(noise), 0.03) if isinstance(time, Timing) else time

    return [each.model_copy(update={n: later(part) for n, part in each}) for each in records]


def of_kind(dtype: Any, records: list[Measurement]) -> list[Any]:
    products = [record for record in records if isinstance(record, GemmRecord)]
    return [each.model_copy(update={"dtype": dtype, "accumulate": False}) for each in products]


GPU = alone()
SHARES = {Load.WHOLE: 60e9, Load.CONCURRENT: 12e9, Load.ALONE: 22e9}
SLOW = GemmMachine.of(A100).replace(num_sms=2, mainloop_flops=1e11, memory_bytes_per_s=1.5e9)
CPU = {"device": "Some CPU", "num_sms": 2, "compute": "fp32", "software": {"torch": "2.13"}}
FP8 = of_kind("fp8", GPU[35:])
ON_CPU = of_kind("fp32", gemms(SLOW, (256, 512, 1024)))
MACHINES: list[tuple[list[Any], dict[str, Any]]] = [
    ([*GPU, *linked(), *crossing(8, SHARES, 18e9)], {"num_ranks": 16, "num_nodes": 2}),
    ([*GPU[18:], *FP8, *crossing(1, SHARES, 18e9)], {"num_ranks": 2, "num_nodes": 2}),
    ([*ON_CPU, *kernels(1e9, 1.5e9, 20e-6), *linked()], CPU | {"num_ranks": 8}),
]
"""A node and its network, GPUs that multiply fp8, and a CPU without a datasheet."""


def values(data: Any, name: str = "") -> Iterator[str]:
    """The values of a profile's entries."""
    if isinstance(data, dict) and "source" in data:
        yield f"{name}: {data['value']}"
    elif isinstance(data, dict):
        yield from (line for key, part in data.items() for line in values(part, f"{name}.{key}"))


@pytest.mark.parametrize("number", range(len(MACHINES)))
def test_a_fit_to_records_stays(number: int, snapshot: SnapshotAssertion) -> None:
    records, machine = MACHINES[number]
    fit = fit_measurements(header(**machine), noisy(records), "mine")
    errors = (
        f"{part.title}: {len(part.rows)}, {part.mean_abs_error:.4f}" for part in fit.residuals
    )
    lines = *values(fit.data), *errors, *fit.notes, *fit.warnings, *map(str, fit.doubts)
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize("name", ["a100_sxm4_80gb", "a100_pcie", "h100_sxm", "mi300x", "v100_p3"])
def test_the_errors_of_a_fit_stay(name: str, snapshot: SnapshotAssertion) -> None:
    fit = fit_figures(ROOT / "calibrate" / "published" / f"{name}.yaml")
    lines = []
    for table in fit.residuals:
        measured = math.fsum(row.measured for row in table.rows)
        predicted = math.fsum(row.predicted for row in table.rows)
        lines.append(f"{table.title}: {len(table.rows)}, {measured:.5g}, {predicted:.5g}")
    assert "\n".join(lines) == snapshot
