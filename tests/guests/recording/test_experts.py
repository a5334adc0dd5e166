"""Mixtures of experts whose tokens go to the ranks of their experts."""

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from simtrain.guests.recording.child import step as recorder
from simtrain.guests.recording.child.op_log import Modules, OpLog
from simtrain.guests.recording.child.recording import program_of
from simtrain.guests.recording.child.streams import Streams
from simtrain.guests.recording.program import RecordedProgram
from simtrain.iteration.report.remarks import remarks_on
from simtrain.studies.simulation import simulate
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers import expert_programs as programs
from tests.helpers.real_processes import real_collectives, recorded_collectives
from tests.helpers.recorded_programs import scenario_of

pytestmark = [
    pytest.mark.slow,
    # torch warns of the view that its own flatten returns.
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]
LAYOUTS = [
    (2, {"experts": 2}),
    (4, {"experts": 4}),
    (4, {"experts": 2, "shards": True}),
    (4, {"experts": 4, "shards": True}),
]
LAYERS, SEQUENCES = 2, 2


@pytest.mark.ci
@pytest.mark.parametrize(("gpus", "layout"), LAYOUTS)
def test_collectives_of_experts_are_those_of_real_processes(
    gpus: int, layout: dict[str, Any], tmp_path: Path
) -> None:
    """The real processes route evenly by force; the recording assumes that its router does."""
    forced = real_collectives(programs.mixture, {**layout, "forced": True}, gpus, tmp_path)
    assert recorded_collectives(programs.mixture, {**layout, "forced": True}, gpus) == forced
    assert recorded_collectives(programs.mixture, layout, gpus) == forced


def recorded(gpus: int = 8, **arguments: Any) -> RecordedProgram:
    step = recorder.record(programs.mixture, arguments, gpus)
    text = program_of(step, {"command": "simtrain import --record x.py:mixture", "gpus": gpus})
    return RecordedProgram.model_validate_json(text)


@pytest.mark.parametrize("experts", [2, 8])
def test_tokens_are_exchanged_four_times_per_layer(experts: int, tmp_path: Path) -> None:
    """By hand: there and back, forward and backward, with the bytes of all choices of a rank."""
    result = simulate(scenario_of(recorded(experts=experts), tmp_path))
    exchanged = [
        op.work.array_bytes
        for pass_, times in result.plan.different_passes()
        for op in record_pass(pass_).ops
        for _ in range(times)
        if isinstance(op.work, Collective) and op.work.kind is CollectiveKind.ALL_TO_ALL
    ]
    tokens = SEQUENCES * programs.LENGTH * programs.CHOICES
    counts = programs.EXPERTS * torch.int64.itemsize
    of_tokens = tokens * programs.HIDDEN * torch.float32.itemsize
    assert sorted(exchanged) == LAYERS * [counts] + 4 * LAYERS * [of_tokens]


def test_what_a_router_chooses_is_assumed_and_said(tmp_path: Path) -> None:
    """Choices that the program forces are known, and nothing is assumed."""
    (remark,) = recorded().remarks
    assert remark.startswith("The program reads how many tokens go where: each expert is taken")
    assert not recorded(forced=True).remarks
    result = simulate(scenario_of(recorded(), tmp_path))
    assert remark in remarks_on(result)


def test_a_value_that_only_the_batch_has_is_not_known() -> None:
    """Numbers that follow from tokens are no constants, and no router's choices."""

    def train() -> Any:
        def wrong(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).sum() * batch.amax().item()

        return torch.nn.Linear(4, 4), torch.rand(2, 4), wrong

    with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
        recorder.record(train, {}, 1)


COUNTS: dict[str, Any] = {
    "histc": lambda chosen: torch.histc(chosen, bins=8, min=0, max=7),
    "bincount": lambda chosen: torch.bincount(chosen, minlength=8),
    "scatter_add": lambda chosen: torch.zeros(8, dtype=torch.long).scatter_add(
        0, chosen, torch.ones_like(chosen)
    ),
}


@pytest.mark.parametrize("count", COUNTS)
def test_routers_may_count_in_any_way(count: str) -> None:
    """100,001 choices of eight experts, of which the first receives one more."""
    numbers: list[int] = []

    def train() -> Any:
        def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
            y = model(x)
            counts = COUNTS[count](y.topk(1).indices.flatten())
            numbers[:] = counts.tolist()
            rows = torch.arange(8).repeat_interleave(counts.long())
            return y[:, 0].sum() * rows.shape[0]

        return torch.nn.Linear(4, 8), torch.zeros(100_001, 4), loss

    assert recorder.record(train, {}, 1).fields["remarks"]
    assert numbers == [12_501] + 7 * [12_500]


def test_what_follows_from_constants_is_exact() -> None:
    """Also the number of elements that a mask selects."""
    found: list[int] = []

    def train() -> Any:
        def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
            kept = (torch.arange(10) % 3 == 0).nonzero()
            found[:] = [kept.shape[0], int(kept.sum())]
            return model(x).sum()

        return torch.nn.Linear(4, 4), torch.zeros(2, 4), loss

    assert not recorder.record(train, {}, 1).fields["remarks"]
    assert found == [4, 0 + 3 + 6 + 9]


@pytest.mark.parametrize(
    ("make", "number"), [(lambda: torch.tensor(3.0), 4), (lambda: torch.zeros(4), 1)]
)
def test_values_are_forgotten_with_their_tensors(
    make: Callable[[], torch.Tensor], number: int
) -> None:
    """The next tensor may have the same address, and another size."""
    log = OpLog(Streams(), Modules())
    with recorder.as_rank(log, 1):
        counted = make().add_(1)
        assert counted.sum().item() == number * counted.numel()
        assert log.values._values or counted.constant is not None
        del counted
        gc.collect()
        assert not log.values._values and not log.values._fills


def test_copies_of_a_model_are_freed() -> None:
    def train(copies: int) -> Any:
        model = torch.nn.Linear(64, 64)
        for _ in range(copies):
            model = copy.deepcopy(model)
        return model, torch.zeros(8, 64), lambda net, x: net(x).sum()

    once, thrice = (recorder.record(train, {"copies": n}, 1).fields["states"] for n in (0, 2))
    assert once == thrice
