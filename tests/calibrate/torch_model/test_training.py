"""Small GPTs trained in torch: two ranks train like one, and their times become records."""

import pathlib
from itertools import product

import pytest
import torch
from torch import Tensor

from calibrate.benchmarks.iterations import iteration_cases
from calibrate.benchmarks.sizes import sizes_for
from calibrate.torch_model.models import expert_split
from simtrain.scenario import Scenario, check_scenario
from tests.helpers.rank_processes import run_ranks
from tests.helpers.training_ranks import (
    EXPERTS,
    LLAMA,
    file_of,
    run_rank,
    scenario,
    trained,
    training_of,
)

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
SPLITS = [{"pipeline": 2}, {"tensor": 2}, {"tensor": 2, "sequence_parallel": True}]
TWO_RANKS = (
    [
        scenario(tied=tied, recompute=recompute, **split)
        for split, (tied, recompute) in product(SPLITS, [(True, "none"), (False, "selective")])
    ]
    + [
        scenario(tied=False, recompute="full", model=LLAMA, **split)
        for split in (SPLITS[0], SPLITS[2])
    ]
    + [
        scenario(
            tied=False, recompute=recompute, model=EXPERTS, **expert_split(EXPERTS, 2), **SPLITS[2]
        )
        for recompute in ("none", "full")
    ]
)


def test_two_ranks_train_like_one(tmp_path: pathlib.Path) -> None:
    assert_ranks_train_as_one_does(tmp_path, TWO_RANKS)


def assert_ranks_train_as_one_does(folder: pathlib.Path, cases: list[Scenario]) -> None:
    """Compare loss and clipped gradients, in float64 summed in fp32. Clipping needs the norm of all
    gradients.
    """
    undivided = [scenario(tied=tied) for tied in (True, False)]
    undivided += [scenario(tied=False, model=model) for model in (LLAMA, EXPERTS)]
    for case in undivided:
        training = training_of(case)
        weights = dict(training.stage.named_parameters())
        whole = trained(training)
        assert norm(list(whole.values())[1:]) == pytest.approx(1, rel=1e-5)
        torch.save((weights, whole), folder / file_of(case))
    num_ranks = cases[0].num_gpus
    run_ranks(run_rank, (str(folder), cases), num_ranks)
    for rank in range(num_ranks):
        for case, errors in zip(cases, torch.load(folder / f"{rank}.pt"), strict=True):
            wrong = {name: error for name, error in errors.items() if not error < 1e-5}
            assert wrong == {}, f"rank {rank}: {case.parallelism}"
            in_a_layer = 12 if case.model.biases else 6
            assert len(errors) >= in_a_layer * case.layers_of_stage(0)


def norm(gradients: list[Tensor]) -> float:
    return float(torch.stack(torch._foreach_norm(gradients)).norm())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_the_cases_are_legal_and_use_all_processes(
    num_ranks: int, quick: bool, device: str
) -> None:
    cases = iteration_cases(num_ranks, sizes_for(device, quick=quick))
    scenarios = [Scenario.model_validate(case) for case in cases]
    for each in scenarios:
        check_scenario(each)
        assert each.num_gpus == num_ranks
    assert len({each.model_dump_json() for each in scenarios}) == len(scenarios) >= 3
