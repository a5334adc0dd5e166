"""Results that are built again equal those of torch's fake mode, in whole recordings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import recording_speed, torchtitan_program
from simtrain.recording.child import patches
from simtrain.recording.child import step as recorder
from simtrain.recording.child.recording import program_of
from simtrain.recording.child.repeated_results import RepeatedResults
from tests.helpers import torch_programs as programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]
SMALL = {"layers": 2, "hidden": 64, "heads": 4, "groups": 2, "inner": 128, "vocab": 64}


def text_of(function: Callable[..., Any], gpus: int, **arguments: Any) -> str:
    step = recorder.record(function, arguments, gpus)
    return program_of(step, {"command": "x", "gpus": gpus})


@pytest.mark.parametrize(
    ("function", "gpus", "arguments"),
    [
        pytest.param(programs.sharded, 8, {"tensor": 2}, id="tensor"),
        *(
            pytest.param(*case, id=name, marks=pytest.mark.ci)
            for name, case in {
                "checkpoints": (programs.llama, 1, {"checkpoints": True}),
                "replicated": (programs.replicated, 4, {"views": True}),
                "torchtitan": (torchtitan_program.train, 8, SMALL | {"length": 64}),
                "llama3_70b": (recording_speed.train, 16, {"layers": 2, "length": 64}),
            }.items()
        ),
    ],
)
def test_recordings_are_those_of_torch_alone(
    function: Callable[..., Any],
    gpus: int,
    arguments: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without this cache and without the shorter look at placements, byte for byte."""
    fast = text_of(function, gpus, **arguments)
    monkeypatch.setattr(
        RepeatedResults, "run", lambda self, func, args, kwargs: func(*args, **kwargs)
    )
    monkeypatch.setattr(patches, "_FLAGS", "no_such_function")
    assert text_of(function, gpus, **arguments) == fast


def test_numbers_of_different_types_are_different_arguments() -> None:
    """1 == 1.0 == True, and the sums have different types."""
    results = RepeatedResults({})
    with FakeTensorMode():
        x = torch.zeros(3, dtype=torch.int64)
        types = [
            results.run(torch.ops.aten.add.Tensor, (x, number), {}).dtype for number in (1, 1.0)
        ]
    assert types == [torch.int64, torch.float32]
