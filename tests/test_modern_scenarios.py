"""Laws of all scenarios, tested on random scenarios that combine many options."""

import io
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from rich.console import Console

from benchmarks.modern_scenarios import modern_scenario, modern_scenarios
from benchmarks.random_programs import times_by_engine
from benchmarks.random_scenarios import is_legal
from simtrain.iteration.report.result import Result
from simtrain.render.terminal import terminal_page
from simtrain.scenario import Scenario
from simtrain.scenario.section import Section
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.simulation import simulate
from simtrain.studies.variation.run import draw
from simtrain.views.memory import memory_view
from simtrain.views.result import result_view
from tests.helpers.floors import (
    assert_mfu_is_hfu_at_most_unless_masked,
    assert_no_op_is_below_its_floor,
)
from tests.helpers.span_sums import assert_spans_add_up

NOT_DRAWN = {
    "name",
    "description",
    # It stands in place of a model (tests/test_recorded_scenarios.py).
    "program",
    # `random_scenarios` draws both.
    "parallelism.first_stage_layers",
    "parallelism.last_stage_layers",
    # It needs `interleave` to be its number of chunks per stage.
    "parallelism.layout",
    # It needs kernels that some profiles lack (tests/workload/test_dispatchers.py).
    "precision.fp8_dispatch",
    # Few numbers of microbatches allow one; tests/schedules draws them.
    "parallelism.microbatch_group_size",
    "memory.in_place_cross_entropy",
    "model.latent_attention.qk_head_dim",
    # A path.
    "variation.sequence_lengths.file",
}
SPLIT_AND_MACHINE = (
    *("parallelism", "placement", "precision", "software", "memory", "overlap", "recompute"),
    *("hardware", "schedule", "cluster", "offload", "variation"),
)
EVALUATOR = Evaluator(allow_oom=True)
STILL = {"kernels": 0, "collectives": 0, "gpu_spread": 0, "pauses": {"per_gpu_hour": 0}}


def fields_of(section: type[Section], before: str = "") -> Iterator[str]:
    """Return the dotted names of all fields, without the names of sections."""
    for name, field in section.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        inner = [one for one in types if isinstance(one, type) and issubclass(one, Section)]
        path = before + (field.serialization_alias or name)
        yield from fields_of(inner[0], f"{path}.") if inner else [path]


def paths_in(values: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, value in values.items():
        is_section = isinstance(value, dict) and before + name != "hardware"
        yield from paths_in(value, f"{before}{name}.") if is_section else [before + name]


def test_every_field_of_a_scenario_is_drawn() -> None:
    """The rarest is drawn about once in 1,500 scenarios."""
    rng, wanted = random.Random(0), {*fields_of(Scenario)} - NOT_DRAWN
    drawn: set[str] = set()
    for _ in range(15_000):
        drawn |= {*paths_in(modern_scenario(rng))}
        if wanted <= drawn:
            break
    assert drawn == wanted


def test_half_of_the_draws_are_legal_and_the_same_for_a_seed() -> None:
    rng = random.Random(0)
    assert sum(is_legal(modern_scenario(rng)) for _ in range(60)) > 30
    assert [*modern_scenarios(5, seed=0)] == [*modern_scenarios(5, seed=0)]


# Three seeds that together draw adapters in fp8; activations, gradients and parameters on hosts;
# NVMe for states and activations, post-validation, deferred gradients, hybrid layers, ring
# self-attention, matrices split in 2.5 dimensions, and a pipeline that runs from both ends.
DRAWS = [
    values | {"name": f"{seed}-{number}"}
    for seed, draws in ((571, 15), (681, 15), (280, 2))
    for number, values in enumerate(modern_scenarios(draws, seed=seed))
]


@pytest.fixture(scope="module", params=DRAWS, ids=lambda one: one["name"])
def drawn(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Result]:
    return request.param, simulate(Scenario.model_validate(request.param))


Drawn = tuple[dict[str, Any], Result]


def test_all_engines_give_identical_times(drawn: Drawn) -> None:
    times = times_by_engine(drawn[1].timeline.program)
    for found in times.values():
        assert all(map(np.array_equal, found, times["simpy"]))
    end_s, iteration_s = times["simpy"][1].max(), drawn[1].iteration_time_s
    # With post-validation stages begin and end one after the other; without a flush the next
    # iteration begins before this one ends.
    if not drawn[1].scenario.steps_together:
        assert 0 < iteration_s <= end_s
    else:
        assert 0 < iteration_s == end_s


def test_both_engines_draw_the_same_times_which_without_variation_are_those(drawn: Drawn) -> None:
    result = drawn[1]
    scenario = Scenario.model_validate(drawn[0])
    for changes, is_still in (({}, False), ({"variation": STILL}, True)):
        times = [
            draw(simulate(scenario.replace(changes), engine=engine), draws=2).times_s
            for engine in ("auto", "simpy")
        ]
        assert np.array_equal(*times)
        assert not is_still or (times[0] == result.iteration_time_s).all()


def test_an_evaluator_gives_the_same_figures_and_bounds_are_below(drawn: Drawn) -> None:
    scenario, result = Scenario.model_validate(drawn[0]), drawn[1]
    found = EVALUATOR.evaluate(scenario)
    assert found.run is not None
    assert found.run.iteration_time_s == result.iteration_time_s
    assert found.run.breakdown == result.breakdown
    assert found.peak_bytes == result.memory.fullest.peak_bytes
    bounds, plan = Bounds(EVALUATOR.machine_of(scenario)), result.iteration.seconds.plan
    assert 0 < bounds.peak_bytes(plan) <= found.peak_bytes
    assert 0 < max(bounds.busy_s(plan), bounds.iteration_s(plan)) <= result.iteration_time_s


def test_every_page_can_be_printed(drawn: Drawn) -> None:
    result = drawn[1]
    console = Console(file=io.StringIO(), width=100)
    console.print(terminal_page(result_view(result)))
    for stage in result.memory.stages:
        console.print(terminal_page(memory_view(replace(result.memory_report, stages=(stage,)))))
    json.dumps(result.to_dict(), allow_nan=False)


def test_no_op_is_faster_than_the_chip_and_mfu_is_hfu_at_most_unless_masked(drawn: Drawn) -> None:
    assert_no_op_is_below_its_floor(drawn[1])
    assert_mfu_is_hfu_at_most_unless_masked(drawn[1])


def test_the_parts_of_each_stage_add_up(drawn: Drawn) -> None:
    for stage in drawn[1].stages:
        assert stage.total_s == pytest.approx(drawn[1].iteration_time_s, rel=1e-9)


def test_spans_add_up_to_the_breakdown_and_the_operators(drawn: Drawn) -> None:
    assert_spans_add_up(drawn[1])


def test_flops_and_parameters_are_those_of_the_model_on_one_gpu(drawn: Drawn) -> None:
    values, result = drawn
    same = {name: value for name, value in values.items() if name not in SPLIT_AND_MACHINE}
    experts = values["model"].get("experts", {})
    if experts:  # The load of one rank is the mean.
        same["model"] = values["model"] | {
            "experts": experts | {"imbalance": 1.0, "imbalance_seed": None}
        }
    if "layer_pattern" in values["model"]:  # Only this stack has such layers.
        same["software"] = "megatron_core"
    if "lora" in values["model"] and values["recompute"]["strategy"] == "full":
        same["recompute"] = "full"  # The first layer then has the gradient of its input.
    alone = simulate(Scenario.model_validate(same))
    assert result.num_parameters == alone.num_parameters
    # Each rank rounds the capacity of its experts up.
    rel = 1e-3 if "capacity_factor" in experts else 0
    # Unfused attention multiplies no scores of later slices, but those of a whole sequence.
    if "sequence_slices" in values["parallelism"] and values["attention_backend"] == "unfused":
        assert result.model_flops < alone.model_flops
    else:
        assert result.model_flops == pytest.approx(alone.model_flops, rel=rel, abs=0)
