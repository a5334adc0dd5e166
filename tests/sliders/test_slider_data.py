"""Data of sliders: they give the simulated iteration at every position."""

import functools
import random
from typing import Any

import numpy as np
import pytest

from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.report.result import Result
from simtrain.scenario import load_scenario
from simtrain.simulation import simulate
from simtrain.sliders.data import slider_data
from simtrain.sliders.grid import BASE, FACTORS, SLIDERS, axes_of
from simtrain.workload.work import Work
from tests.helpers.slider_page import (
    CASES,
    expected,
    memory_of,
    memory_times_of,
    timeline_of,
)
from tests.helpers.toys import small


@functools.cache
def case(name: str) -> tuple[Result, dict[str, Any]]:
    result = simulate(CASES[name])
    return result, slider_data(result)


def test_the_base_position_of_sliders_is_the_simulated_cluster() -> None:
    assert FACTORS[BASE] == 1 and [*FACTORS] == sorted(FACTORS)
    profile = load_profile("h100_sxm")
    for slider in SLIDERS.values():
        assert slider.moved(profile, 1.0) == profile


@pytest.mark.parametrize("name", CASES)
def test_the_data_give_the_simulated_iteration_time(name: str) -> None:
    result, data = case(name)
    found = timeline_of(data, {})
    assert np.array_equal(found.start_s, result.timeline.start_s)
    shown, draw = {one["name"] for one in data["sliders"]}, random.Random(name)
    for _ in range(2):
        positions = {one: draw.randrange(len(FACTORS)) for one in SLIDERS}
        found, moved = timeline_of(data, positions), expected(result, positions)
        np.testing.assert_allclose(found.end_s, moved.timeline.end_s, rtol=1e-12)
        times_s, held_bytes = memory_of(moved)
        np.testing.assert_allclose(memory_times_of(data, found), times_s, rtol=1e-12)
        assert held_bytes == memory_of(result)[1]
        # An omitted slider changes nothing.
        of_shown = {one: place for one, place in positions.items() if one in shown}
        assert timeline_of(data, of_shown).makespan_s == found.makespan_s


def test_a_slider_without_effect_is_omitted() -> None:
    names = [one["name"] for one in case("sequence parallel")[1]["sliders"]]
    assert names == ["compute", "memory", "nvlink", "latency"]
    one_gpu = slider_data(simulate(small({"tensor": 1, "pipeline": 1})))
    assert [one["name"] for one in one_gpu["sliders"]] == ["compute", "memory"]


def test_amounts_equal_the_entries_of_the_profile() -> None:
    sliders = {one["name"]: one for one in case("interleaved")[1]["sliders"]}
    texts = {name: [one["text"] for one in slider["positions"]] for name, slider in sliders.items()}
    assert texts["memory"][BASE] == "1×, 2.04 TB/s" and texts["memory"][-2] == "2×, 4.08 TB/s"
    assert texts["compute"][BASE] == "1×, 312 TFLOP/s in bf16"
    assert len(texts["latency"]) == len(FACTORS)
    numbers = sliders["memory"]["positions"][BASE]["numbers"]
    assert [one["value"] for one in numbers] == [1.0, 2.039e12]


def works(result: Result) -> set[Work]:
    """Return the work of all ops of an iteration."""
    return {op.work for op in result.seconds.all_ops()}


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_8b"])
def test_the_time_of_work_depends_only_on_its_axes(name: str) -> None:
    """Moving other sliders changes neither its time nor its device load."""
    result = simulate(load_scenario(name))
    draw = random.Random(name)
    for _ in range(4):
        profile, positions = result.profile, {one: draw.choice(FACTORS) for one in SLIDERS}
        all_moved, own = profile, dict.fromkeys(map(axes_of, works(result)), profile)
        for one, factor in positions.items():
            all_moved = SLIDERS[one].moved(all_moved, factor)
            for axes in own:
                if one in axes:
                    own[axes] = SLIDERS[one].moved(own[axes], factor)
        models = {axes: DurationModel(profile) for axes, profile in own.items()}
        model = DurationModel(all_moved)
        for work in works(result):
            assert model.seconds(work) == models[axes_of(work)].seconds(work)
            assert model.device_load(work) == models[axes_of(work)].device_load(work)
