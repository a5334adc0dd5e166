"""Errors of `python -m calibrate measure`."""

from pathlib import Path

import pytest
import torch

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


def test_an_interrupt_prints_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrate.benchmarks.measure.measure", interrupted)
    done = command("-o", str(tmp_path), "--device", "cpu")
    assert done.exit_code == 130
    assert "the same command measures" in done.stderr
