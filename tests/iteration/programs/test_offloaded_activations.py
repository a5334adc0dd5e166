"""Activations that wait on the host: copies beside the passes, and memory without them."""

import functools
from typing import Any

import numpy as np
import pytest

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine
from simtrain.errors import InputError
from simtrain.iteration.memory.host_memory import OffloadMemory
from simtrain.iteration.planned import run_iteration
from simtrain.iteration.programs.parts import offloaded_bytes
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.views.memory import memory_sentence
from tests.helpers.toys import a100, changed, plan_of, run, scenario_with

FAST = 1e30
MODEL = {
    "num_layers": 16,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "tied_embeddings": False,
}
CASES: dict[str, dict[str, Any]] = {
    "layers": {"parallelism": {"pipeline": 1}, "offload": "layer"},
    "layers of stages": {"parallelism": {"pipeline": 4}, "offload": "layer"},
    "some layers": {"parallelism": {"pipeline": 4}, "offload": {"layers": 2}},
    "modules": {
        "parallelism": {"pipeline": 4},
        "offload": {"modules": ["core_attn", "attn_proj", "h→4h"]},
    },
    "layers of zbv": {
        "parallelism": {"pipeline": 4, "interleave": 2},
        "schedule": "zbv",
        "offload": "layer",
    },
    "beside buckets": {
        "parallelism": {"pipeline": 4, "interleave": 2, "data": 2},
        "memory": {"zero_stage": 1},
        "overlap": {"data_parallel": True, "parameter_gather": True, "gradient_buckets": "layer"},
        "offload": "layer",
    },
    "beside recompute": {
        "parallelism": {"pipeline": 4},
        "recompute": {"strategy": "full", "keep_microbatches": 1},
        "offload": "layer",
    },
}


def scenario_of(name: str) -> Scenario:
    model = MODEL | {"seq_length": 1024}
    return scenario_with(model, batch={"micro": 1, "global": 16}, **CASES[name])


@functools.cache
def result_of(name: str, bytes_per_s: float, engine: Engine = "auto") -> Result:
    profile = changed(a100(), host_link__bandwidth=bytes_per_s)
    return Result(
        run_iteration(plan_of(scenario_of(name)), Machine(DurationModel(profile), engine))
    )


@functools.cache
def without_copies(name: str) -> Result:
    return run(scenario_of(name).replace({"offload": "none"}))


@pytest.mark.parametrize("name", CASES)
def test_each_unit_that_leaves_comes_back_once(name: str) -> None:
    result = result_of(name, 20e9)
    copies = OffloadMemory.of(result.iteration)
    out, back = copies.task_bytes[copies.out], copies.task_bytes[copies.back]
    assert len(out) and sorted(out.tolist()) == sorted(back.tolist())
    sizes, time = np.concatenate([out, back]), result.timeline
    moves = np.concatenate([copies.out, copies.back])
    seconds = time.end_s[moves] - time.start_s[moves]
    np.testing.assert_allclose(seconds, sizes / 20e9, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_copies_without_duration_cost_no_time_and_need_the_least_memory(name: str) -> None:
    base, fast, slow = without_copies(name), result_of(name, FAST), result_of(name, 20e9)
    assert fast.iteration_time_s == pytest.approx(base.iteration_time_s, rel=1e-12)
    assert fast.breakdown.host_copies_s == 0
    for least, more, most in zip(
        *(result.memory_report.peaks_bytes for result in (fast, slow, base)), strict=True
    ):
        assert least <= more <= most
    assert fast.memory_report.fullest.peak_bytes < base.memory_report.fullest.peak_bytes


@pytest.mark.parametrize("name", CASES)
def test_slow_copies_delay_backward_passes_and_the_causes_add_up(name: str) -> None:
    result = result_of(name, 1e8)
    assert result.iteration_time_s > 2 * without_copies(name).iteration_time_s
    assert result.breakdown.host_copies_s > result.iteration_time_s / 5
    for stage in result.stages:
        assert stage.total_s == pytest.approx(result.iteration_time_s)
    exposed = {stage: 0.0 for stage in range(result.num_stages)}
    for stage in exposed:
        rows = result.operators(stage).rows
        copies = [row for row in rows if row.name == "activations from host"]
        exposed[stage] = sum(row.exposed_s for row in copies)
        assert exposed[stage] == pytest.approx(result.stages[stage].host_copies_s, rel=1e-6)


def test_one_layer_is_copied_while_the_next_one_runs() -> None:
    """Without a pipeline all layers but the last wait on the host; the job has one GPU."""
    result = result_of("layers", FAST)
    (sizes,) = {offloaded_bytes(result.plan, 0, saves_all=False)}
    assert len(sizes) == 16 and len({*sizes}) == 1
    host = result.memory_report.host
    assert host is not None and host.needed_bytes == 15 * sizes[0]
    assert len(OffloadMemory.of(result.iteration).out) == 16 * 15


def test_host_memory_is_checked() -> None:
    scenario = scenario_of("layers of stages")
    needed = run(scenario).memory_report.host
    assert needed is not None and needed.fits
    small = run(scenario, host_link__memory=needed.needed_bytes - 1).memory_report
    assert not small.fits and small.missing_bytes < 0
    assert "of a node's host" in memory_sentence(small)


def test_a_tensor_stays_if_another_module_saves_it() -> None:
    """The attention's projection saves the output of its core."""
    plan = plan_of(scenario_of("modules"))
    core = plan_of(scenario_of("modules").replace({"offload.modules": ["core_attn"]}))
    output = 1024 * 1024 * 2
    both, alone = (offloaded_bytes(each, 1, saves_all=False) for each in (plan, core))
    norms = 1024 * 1024 * 2
    assert [whole - part for whole, part in zip(both, alone, strict=True)] == 4 * [output + norms]


def test_an_unknown_module_is_refused() -> None:
    scenario = scenario_of("layers").replace({"offload": {"modules": ["expert_fc1"]}})
    with pytest.raises(InputError, match="no layer saves tensors of 'expert_fc1'") as error:
        run(scenario)
    assert error.value.problems[0].code == "E442"
