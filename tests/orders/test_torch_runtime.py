"""PyTorch's runtime runs orders that simtrain has found, and trains as one process does."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from simtrain.orders.list_scheduling import OrderProblem, Policy, list_schedule
from simtrain.schedules import KINDS, Schedule, build
from simtrain.schedules.stage_placement import back_and_forth, looped
from tests.helpers.rank_processes import run_ranks
from tests.helpers.torch_pipeline import data_of, loss_of, model_of, train_in_order

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def found(chunks: int, microbatches: int, *, v_shaped: bool = False) -> Schedule:
    placement = (back_and_forth if v_shaped else looped)(2, chunks)
    stages = placement.num_virtual_stages
    seconds = dict.fromkeys((kind for kind in KINDS if kind != "B"), (1.0,) * stages)
    problem = OrderProblem(
        placement, microbatches, seconds, (0.1,) * stages, (2,) * stages, (1,) * stages
    )
    schedule = list_schedule(problem, Policy(1.5, True, False, False))
    assert schedule is not None and schedule.splits_backwards
    return schedule


@pytest.mark.parametrize(
    "schedule",
    [found(1, 4), found(2, 4), found(2, 3, v_shaped=True), build("interleaved", 2, 2, 4)],
    ids=["split", "chunks", "v", "named"],
)
def test_pytorch_trains_in_the_order_of_the_file(schedule: Schedule, tmp_path: Path) -> None:
    microbatches, ranks = schedule.num_microbatches, schedule.placement.virtual_stages
    file = tmp_path / "order.csv"
    file.write_text(schedule.to_csv())
    arguments = tmp_path, str(file), [*map(list, ranks)], microbatches
    run_ranks(train_in_order, arguments, len(ranks))
    inputs, targets = data_of(microbatches)
    layers = model_of(schedule.num_virtual_stages)
    loss = loss_of(nn.Sequential(*layers)(inputs), targets)
    loss.backward()
    for rank, stages in enumerate(ranks):
        gradients = json.loads((tmp_path / f"{rank}.json").read_text())
        for stage in stages:
            for grad, parameter in zip(
                gradients[str(stage)], layers[stage].parameters(), strict=True
            ):
                assert parameter.grad is not None
                expected = parameter.grad.flatten()
                torch.testing.assert_close(torch.tensor(grad), expected, rtol=1e-4, atol=1e-6)
