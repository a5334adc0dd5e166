"""Errors of `python -m calibrate measure`."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from calibrate.benchmarks.sizes import BenchmarkPart, sizes_for
from tests.helpers.command_line import Outcome, call

pytestmark = pytest.mark.slow


def command(*arguments: str) -> Outcome:
    return call("calibrate", "measure", *arguments)


def test_collectives_alone_need_two_processes(tmp_path: Path) -> None:
    done = command("-o", str(tmp_path), "--only", "collectives", "--device", "cpu")
    assert done.exit_code == 2
    assert "E716 collectives need two processes" in done.stderr
    assert "torchrun --nproc-per-node 2" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused(tmp_path: Path) -> None:
    done = command("-o", str(tmp_path), "--device", "cuda")
    assert done.exit_code == 2
    assert "E702 torch finds no CUDA device" in done.stderr


def test_defaults_of_a_measurement_that_an_interrupt_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU if there is one; all sizes without a limit, or few in two minutes."""
    seen: list[Any] = []

    def interrupted(*arguments: Any) -> None:
        seen.append(arguments[1:])
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrate.benchmarks.measure.measure", interrupted)
    monkeypatch.setattr("calibrate.memory.measure.compare", interrupted)
    for has_gpu, device in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        done = command("-o", str(tmp_path))
        assert done.exit_code == 130 and "the same command measures" in done.stderr
        command("-o", str(tmp_path), "--quick", "--only", "kernels", "--dtype", "fp16")
        for options in ([], ["--device", "cpu"]):
            call("calibrate", "check", *options)
        whole, quick, checked, on_cpu = seen[-4:]
        parts = [*BenchmarkPart]
        assert whole == (device, sizes_for(device, quick=False), parts, math.inf, None)
        assert quick == (device, sizes_for(device, quick=True), ["kernels"], 2.0, "fp16")
        assert checked == ("cuda" if has_gpu else "meta",) and on_cpu == ("meta",)
