"""Iterations whose stages split the vocabulary (Yeung et al. 2024)."""

from pathlib import Path
from typing import Any

import pytest

import simtrain
from simtrain.engine import Engine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.schedules.vocabulary import SPLITS
from tests.helpers.toys import run, small
from tests.studies.search.test_bounds import check, plan_of

MODEL = {"num_layers": 8, "hidden_size": 512, "vocab_size": 65_536, "tied_embeddings": False}


def scenario(vocabulary: str, schedule: str = "1f1b", **sections: Any) -> Scenario:
    chunks = 2 if schedule == "v_half" else 1
    grid = {"tensor": 1, "data": 1, "vocabulary": vocabulary, "interleave": chunks}
    return small(grid, model=MODEL, batch={"micro": 1, "global": 16}, schedule=schedule, **sections)


def vocabulary_parameters(result: Result) -> list[int]:
    """Return [stages], parameters beside the layers of each stage."""
    return [parameters.root for parameters in result.plan.stage_parameters]


@pytest.mark.parametrize("split", SPLITS)
def test_every_stage_holds_an_equal_part(split: str) -> None:
    whole, divided = run(scenario("first_last")), run(scenario(split))
    assert divided.num_parameters == whole.num_parameters
    table = MODEL["vocab_size"] * MODEL["hidden_size"]
    held = vocabulary_parameters(whole)
    rest = [held[0] - table, 0, 0, held[-1] - table]
    shares = [2 * table // 4 + more for more in rest]
    assert vocabulary_parameters(divided) == shares
    assert divided.model_flops == whole.model_flops


@pytest.mark.parametrize("split", SPLITS)
def test_a_large_vocabulary_no_longer_holds_up_the_other_stages(split: str) -> None:
    """Each microbatch takes a quarter of the vocabulary's time on every stage."""
    whole, divided = run(scenario("first_last")), run(scenario(split))
    assert divided.iteration_time_s < 0.75 * whole.iteration_time_s


def test_barriers_cost_activations() -> None:
    """Of 1F1B's first stage: 6 microbatches in place of 4, 5, and 6 again with four stages."""
    activations = {
        split: run(scenario(split)).memory.stages[0].activations_bytes
        for split in ("vocab_1", "vocab_2", "interlaced")
    }
    assert activations["vocab_2"] < min(activations["vocab_1"], activations["interlaced"])


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("schedule", ["1f1b", "v_half"])
def test_engines_agree_to_the_bit(engine: Engine, schedule: str) -> None:
    divided = scenario("vocab_1", schedule)
    time_s = simtrain.simulate(divided, engine=engine).iteration_time_s
    assert time_s == simtrain.simulate(divided).iteration_time_s


@pytest.mark.parametrize("split", SPLITS)
def test_bounds_of_searches_hold(split: str) -> None:
    check(plan_of(scenario(split, cluster="a100_sxm4_80gb")))


def test_traces_show_the_collectives(tmp_path: Path) -> None:
    result = run(scenario("vocab_1"))
    simtrain.write_trace(result, tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    assert "statistics of 8F0" in text and "embedding gradient of 0B0" in text
