"""Measurements of a GPU's host move the bytes that they state; only GPUs have a host."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrate.benchmarks.kernels import adam_runs, copy_runs, host_points
from calibrate.benchmarks.ranks import Ranks
from calibrate.benchmarks.sizes import sizes_for
from calibrate.benchmarks.timing import Run, Timer
from calibrate.records.schema import HostRecord
from calibrate.torch_model.training import MixedPrecisionAdam
from tests.helpers.measure_tiny import TINY

pytestmark = pytest.mark.slow

CPU = Timer("cpu", 1e-3, Ranks())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def copy_of(run: Run) -> tuple[Tensor, Tensor]:
    """Return the target and the source of a copy."""
    assert isinstance(run, partial)
    return run.func.__self__, run.args[0]  # type: ignore[attr-defined]


def test_copies_in_each_direction_have_their_own_buffers() -> None:
    for way, filled in (("to_device", 1), ("to_host", 0)):
        runs = copy_runs(way, 1 << 24, CPU)  # type: ignore[arg-type]
        assert len(runs) == CPU.copies(1 << 24)
        targets = [copy_of(run)[0] for run in runs]
        assert len({target.data_ptr() for target in targets}) == len(runs)
        runs[0]()
        # Host memory contains ones, device memory zeros.
        assert targets[0].nbytes == 1 << 24
        assert int(targets[0][-1]) == filled
        assert int(targets[1][-1]) == 1 - filled


def test_the_hosts_adam_equals_training_and_moves_28_bytes_per_parameter() -> None:
    first: Callable[[], Any]
    first, *_ = adam_runs(28 << 20, CPU)
    assert isinstance(first, partial)
    (weights,), (gradients,), (momenta,), (variances,), *_ = first.args
    assert weights.nbytes + gradients.nbytes + momenta.nbytes + variances.nbytes == 16 << 20
    parameter = torch.nn.Parameter(weights[:4].bfloat16())
    adam = MixedPrecisionAdam([parameter], learning_rate=first.args[-1])
    adam._masters[0].copy_(weights[:4])
    adam._momenta[0].copy_(momenta[:4])
    adam._variances[0].copy_(variances[:4])
    adam.gradients[0].copy_(gradients[:4])
    adam.step()
    first()
    assert torch.equal(adam._masters[0], weights[:4])


def test_only_a_gpu_has_a_host() -> None:
    assert host_points(TINY, CPU) == []
    sizes = sizes_for("cuda", quick=False)
    points = host_points(sizes, Timer("cuda", 1.0, Ranks(0, 8, 8)))
    assert {point.kind for point in points} == {HostRecord}
    assert len({point.identity for point in points}) == len(points) == 3 * len(sizes.host_bytes)
    adam = [point.what["num_bytes"] for point in points if point.what["what"] == "adam"]
    assert all(num_bytes % 28 == 0 for num_bytes in adam)
