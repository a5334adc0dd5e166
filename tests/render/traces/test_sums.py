"""A trace without kernels has the same unions and overlaps as a trace with all kernels."""

import functools
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import Spans
from simtrain.render.traces.slices import KINDS, PassSums, SliceKind, sum_up
from simtrain.render.traces.write import write_trace
from simtrain.studies.simulation import simulate
from tests.helpers.traced_kernels import TRACED, Measures, measured, reported_us
from tests.helpers.traces import read_json


@functools.cache
def result_of(name: str) -> Result:
    return simulate(TRACED[name])


def measures_of(result: Result, file: pathlib.Path, **shown: Any) -> list[Measures]:
    """Write a trace with the kernels that `shown` chooses, and return the measures per stage."""
    write_trace(result, file, **shown)
    events = read_json(file)["traceEvents"]
    stride = result.plan.mesh.stride("pp")
    return [measured(events, stage * stride) for stage in range(result.num_stages)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_sums_of_passes_have_the_measures_of_their_kernels(
    name: str, tmp_path: pathlib.Path
) -> None:
    """Both equal the report's compute and exposed communication."""
    result, file = result_of(name), tmp_path / "t.json"
    kernels = measures_of(result, file, window_s=(0.0, result.iteration_time_s))
    for shown in ({}, {"microbatches": [0]}):
        for stage, one in enumerate(measures_of(result, file, **shown)):
            assert max(one.differences_us(kernels[stage])) < 0.2
            compute_us, exposed_us = reported_us(result, stage)
            assert one.compute_us == pytest.approx(compute_us, abs=0.2)
            assert one.other_us == pytest.approx(exposed_us, abs=0.2)


def ticks(intervals: list[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return a mask of the ticks that are in one of the intervals."""
    found = np.zeros(200, np.bool_)
    for start, end in intervals:
        found[start:end] = True
    return found


intervals = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
    lambda ends: (min(ends), max(ends))
)
ops = st.lists(st.tuples(intervals, st.sampled_from(KINDS)), max_size=8)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(ops, min_size=1, max_size=3), st.data())
def test_sums_keep_unions_and_overlaps(passes: list[Any], data: st.DataObject) -> None:
    """Passes have 20 ticks in two spans, with a wait between them, and there is communication
    outside of passes.
    """
    spans, placed, now = [], [], 0
    for owner, own in enumerate(passes):
        cut = data.draw(st.integers(0, 20))
        for first, last in ((0, cut), (cut, 20)):
            now += data.draw(st.integers(0, 5))
            spans.append((owner, owner, now, now + last - first, first))
            for (start, end), kind in own:
                inside = max(start, first), max(min(end, last), first)
                placed.append(([one + now - first for one in inside], kind))
            now += last - first
    outside = data.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 20)), max_size=4))
    outside = [(start, start + length) for start, length in outside]
    owner, sums, start_s, end_s, offset_s = np.array(spans).T
    zeros = np.zeros_like(owner)
    found = sum_up(
        Spans(
            task=zeros,
            stage=zeros,
            stream=zeros,
            activity=zeros,
            pass_number=owner,
            chunk=zeros,
            microbatch=zeros,
            start_s=1e-9 * start_s,
            end_s=1e-9 * end_s,
        ),
        sums,
        1e-9 * offset_s,
        [
            PassSums.of(
                *1e-9 * np.array([at for at, _ in own]).reshape(-1, 2).T, [k for _, k in own]
            )
            for own in passes
        ],
        1e-9 * np.array(outside).reshape(-1, 2),
    )
    given_ = {kind: ticks([at for at, one in placed if one is kind]) for kind in KINDS}
    summed = dict(zip(KINDS, ([*zip(*one[1:], strict=True)] for one in found), strict=True))
    for kind in KINDS:  # intervals of a kind do not overlap
        assert sum(end - start for start, end in summed[kind]) == ticks(summed[kind]).sum()

    def sizes(busy: dict[SliceKind, NDArray[np.bool_]]) -> list[int]:
        compute, communication, copies = (busy[kind] for kind in KINDS)
        communication = communication | ticks(outside)
        either = compute | communication
        unions = compute, communication, compute & communication, either, either | copies
        return [int(one.sum()) for one in unions]

    assert sizes({kind: ticks(own) for kind, own in summed.items()}) == sizes(given_)
