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


def run_twice(func: Any, make: Callable[[], tuple[Any, ...]]) -> list[tuple[Any, Any, bool]]:
    """Run an op twice on new arguments; return these, the result and whether torch was asked."""
    asked: list[int] = []
    results = RepeatedResults({})

    class Counted:
        namespace = func.namespace

        def __call__(self, *args: Any) -> Any:
            asked.append(1)
            return func(*args)

        def __hash__(self) -> int:
            return hash(func)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Counted)

    outcomes = []
    with FakeTensorMode():
        for _ in range(2):
            arguments, before = make(), len(asked)
            outcomes.append((arguments, results.run(Counted(), arguments, {}), len(asked) > before))
    return outcomes


def test_numbers_of_different_types_are_different_arguments() -> None:
    """1 == 1.0 == True, and the sums have different types."""
    results = RepeatedResults({})
    with FakeTensorMode():
        x = torch.zeros(3, dtype=torch.int64)
        types = [
            results.run(torch.ops.aten.add.Tensor, (x, number), {}).dtype for number in (1, 1.0)
        ]
    assert types == [torch.int64, torch.float32]


def test_ops_that_change_a_shape_are_left_to_torch() -> None:
    outcomes = run_twice(torch.ops.aten.t_.default, lambda: (torch.empty(3, 4),))
    assert [asked for *_, asked in outcomes] == [True, True]
    assert all(result.shape == (4, 3) for _, result, _ in outcomes)


def test_which_of_two_equal_arguments_is_returned_is_left_to_torch() -> None:
    def twice() -> tuple[Any, ...]:
        x = torch.empty(3)
        return x, x

    assert [asked for *_, asked in run_twice(torch.ops.aten.add_.Tensor, twice)] == [True, True]
