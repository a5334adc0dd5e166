"""Walks from a figure to profile entries: parts add up, and every entry has its source."""

from collections.abc import Iterator
from typing import Literal

import pytest

from simtrain.hardware.entries import entry_of
from simtrain.iteration.report.origins import FIGURES, FigureName, NumberOrigin, explain_figure
from tests.helpers.toys import run, small

RESULT = run(small({"sequence_parallel": True}, recompute="selective"))


def walk(origin: NumberOrigin) -> Iterator[NumberOrigin]:
    yield origin
    for part in origin.parts:
        yield from walk(part)


@pytest.mark.parametrize("figure", ["iteration_time", "peak_memory"])
def test_parts_add_up_to_each_number(figure: Literal["iteration_time", "peak_memory"]) -> None:
    explained = explain_figure(RESULT, figure)
    value = {
        "iteration_time": RESULT.iteration_time_s,
        "peak_memory": RESULT.memory.fullest.peak_bytes,
    }[figure]
    assert explained.origin.value == value
    for one in walk(explained.origin):
        if one.parts:
            assert sum(part.value for part in one.parts) == pytest.approx(one.value), one.name


@pytest.mark.parametrize("figure", ["mfu", "hfu"])
def test_a_utilization_is_flops_over_peak_flops_of_all_gpus(figure: Literal["mfu", "hfu"]) -> None:
    flops, gpus, peak, time = explain_figure(RESULT, figure).origin.parts
    assert flops.value / (gpus.value * peak.value * time.value) == pytest.approx(
        getattr(RESULT, figure)
    )
    assert time == explain_figure(RESULT, "iteration_time").origin


@pytest.mark.parametrize("figure", FIGURES)
def test_named_entries_are_listed_with_their_sources(figure: FigureName) -> None:
    explained = explain_figure(RESULT, figure)
    named = {name for one in walk(explained.origin) for name in one.entries}
    assert named == explained.sources.keys()
    for name, source in explained.sources.items():
        entry = entry_of(RESULT.profile, name)
        assert (source.source, source.fitted_on) == (entry.source, entry.fitted_on)


def test_each_large_part_names_its_largest_operators() -> None:
    compute = explain_figure(RESULT, "iteration_time").origin.parts[0]
    rows = RESULT.operators().of_cause("compute")
    shown = [part.operator for part in compute.parts if part.operator]
    assert compute.name == "compute"
    assert shown == [*rows[: len(shown)]]
