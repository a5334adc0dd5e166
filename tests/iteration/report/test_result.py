"""Results as text, as tables of notebooks, as plain data and as frames."""

import copy
import dataclasses
import io
import pickle
import re
import sys
import types
from dataclasses import asdict

import pytest
from rich.console import Console

from simtrain.engine import Timeline
from simtrain.iteration.memory.report import MemoryReport
from simtrain.iteration.report.breakdown import mean_breakdown
from simtrain.render.terminal import terminal_page
from simtrain.views.result import result_view
from simtrain.views.view import text_of
from tests.helpers.toys import run, small

RESULT = run(small())


def test_a_notebook_shows_what_the_command_prints() -> None:
    html = RESULT._repr_html_()
    text = " ".join(re.sub("<[^>]*>", " ", html).split())
    view = result_view(RESULT)
    for name in ("breakdown", "peaks"):
        table = view.tables[name]
        assert table.title in text
        assert all(text_of(row.cells[0], table.columns[0]) in text for row in table.rows)
    assert all(sentence in text for sentence in view.sentences)
    assert "<canvas" not in html


def test_tables_have_a_row_per_stage_and_per_task() -> None:
    parts = RESULT.breakdown.records()
    assert [row.pop("stage") for row in parts] == [0, 1, 2, 3]
    assert [sum(row.values()) for row in parts] == pytest.approx([RESULT.iteration_time_s] * 4)
    peaks = [row["peak_bytes"] for row in RESULT.memory.records()]
    assert tuple(peaks) == RESULT.memory.peaks_bytes
    tasks = RESULT.timeline.records()
    assert len(tasks) == RESULT.timeline.program.num_tasks
    assert max(row["end_s"] for row in tasks) == RESULT.iteration_time_s


def test_frames_are_pandas_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = lambda rows: ("frame", rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert RESULT.breakdown.frame() == ("frame", RESULT.breakdown.records())
    assert RESULT.memory.frame() == ("frame", RESULT.memory.records())
    assert RESULT.timeline.frame() == ("frame", RESULT.timeline.records())

    operators = RESULT.operators()
    assert operators.frame() == ("frame", operators.records())


def test_a_pickled_result_is_a_complete_result() -> None:
    again = pickle.loads(pickle.dumps(RESULT))
    assert again.to_dict() == RESULT.to_dict() and again.scenario == RESULT.scenario
    assert again.operators(0).to_dict() == RESULT.operators(0).to_dict()
    assert again.profile.model_dump() == RESULT.profile.model_dump()
    timeline = pickle.loads(pickle.dumps(RESULT.timeline))
    assert timeline.records() == RESULT.timeline.records()


def test_parts_of_a_result_equal_plain_parts() -> None:
    """They are equal and have the same fields. A copy can still list its records."""
    breakdown, report = mean_breakdown(RESULT.stages), RESULT.memory_report
    for view, plain in ((RESULT.breakdown, breakdown), (RESULT.memory, report)):
        assert view == plain and plain == view
        assert asdict(view) == asdict(plain) and view != RESULT
    assert hash(RESULT.breakdown) == hash(breakdown)
    timeline = RESULT.iteration.timeline
    assert RESULT.timeline.times_s is timeline.times_s
    again = copy.deepcopy(RESULT.breakdown)
    assert again == RESULT.breakdown and again.records() == RESULT.breakdown.records()


def test_a_part_with_other_values_is_a_plain_part() -> None:
    memory, breakdown = RESULT.memory, RESULT.breakdown
    smaller = dataclasses.replace(memory, capacity_bytes=2**30)
    assert type(smaller) is MemoryReport and not smaller.fits
    assert repr(memory).startswith("<MemoryReport of 4 stages: 7.40/80 GiB: fits")
    assert smaller.stages == memory.stages
    assert dataclasses.replace(breakdown, compute_s=0.0).total_s < breakdown.total_s
    timeline = dataclasses.replace(RESULT.timeline)
    assert type(timeline) is Timeline and timeline.times_s is RESULT.timeline.times_s


def test_head_sizes_that_are_not_a_multiple_of_8_give_a_warning() -> None:
    """The warning is on the page and in the data."""
    odd, even = (run(small(model={"kv_channels": channels})) for channels in (108, 144))
    (warning,) = odd.to_dict()["warnings"]
    assert " 108 channels" in warning and " 8" in warning
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal_page(result_view(odd)))
    assert warning in console.export_text()
    assert even.to_dict()["warnings"] == []
