"""Figures of one iteration: contents, identical files, refused input."""

import pathlib

import numpy as np
import pytest

import simtrain
from simtrain.errors import InputError
from simtrain.iteration.report.spans import ACTIVITIES
from simtrain.iteration.report.windows import windows_of
from simtrain.render.figures import iteration
from simtrain.render.figures.iteration import plot_breakdown, plot_memory, plot_timeline
from simtrain.render.figures.style import footer_of_result
from simtrain.render.timeline_lanes import FILLS, MARKS, OWN, lane_places, lanes_of
from tests.helpers.command_line import call
from tests.helpers.toys import run, small
from tests.render.figures.test_labels import check

pytestmark = pytest.mark.slow

RESULT = run(small())


def test_a_picture_of_one_stage_has_its_passes_and_its_memory() -> None:
    figure = plot_timeline(RESULT, stages=[1])
    rows, memory = figure.axes
    assert [label.get_text() for label in rows.get_yticklabels()] == ["stage 1"]
    assert memory.get_ylabel() == "memory, GiB"
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[:2] == ["forward", "backward"] and words[-2:] == ["optimizer", "idle"]


BUCKETS = run(small({"data": 2}, overlap={"data_parallel": True}, recompute="full"))
CHUNKS = run(small({"interleave": 2}, batch={"micro": 1, "global": 120}))
MANY = run(small({"pipeline": 80}, model={"num_layers": 80}))


def test_words_and_numbers_of_pictures_can_be_read() -> None:
    """A long iteration has three windows, of which the last explains the colours of chunks."""
    for plot in (plot_timeline, plot_memory, plot_breakdown):
        for result in (CHUNKS, BUCKETS):
            check(plot(result))
    words = "start, s", "steady part, s", "end, s (later chunks are lighter)"
    windows_s, axes = [*windows_of(CHUNKS).values()], plot_timeline(CHUNKS).axes
    assert [each.get_xlim() for each in axes] == windows_s * 2
    assert len(plot_timeline(CHUNKS, window_s=(0.0, CHUNKS.iteration_time_s)).axes) == 2
    assert [each.get_xlabel() for each in axes] == ["", "", "", *words]
    assert [each.get_legend() is not None for each in axes] == [False] * 5 + [True]
    peaks, *curves = plot_memory(CHUNKS).axes
    assert [each.get_xlim() for each in curves] == windows_s
    assert [each.get_xlabel() for each in curves] == ["start, s", "steady part, s", "end, s"]
    assert [each.get_legend() is not None for each in curves] == [True, False, False]
    assert peaks.get_position().width > 2 * curves[0].get_position().width
    assert {each.get_position().y0 for each in curves} == {peaks.get_position().y0}


@pytest.mark.parametrize(
    ("pipeline", "stages", "words"),
    [
        (1, [0], "one stage"),
        (2, [0, 1], "each stage"),
        (4, [0, 1, 3], "first, middle and last stage"),
        (80, [0, 39, 79], "first, middle and last stage"),
    ],
)
def test_memory_over_time_is_drawn_of_three_stages(
    pipeline: int, stages: list[int], words: str
) -> None:
    result = run(small({"pipeline": pipeline}, model={"num_layers": max(pipeline, 8)}))
    _, axes = plot_memory(result).axes
    assert axes.get_title(loc="left") == f"over the iteration ({words})"
    *lines, capacity = axes.lines
    assert [line.get_label() for line in lines] == [f"stage {stage}" for stage in stages]
    for line, stage in zip(lines, stages, strict=True):
        assert max(line.get_ydata()) == result.memory.stages[stage].peak_bytes / 2**30
        assert (line.get_xdata()[0], line.get_xdata()[-1]) == (0, result.iteration_time_s)
        assert line.get_ydata()[-1] == line.get_ydata()[-2]
    assert capacity.get_ydata() == [result.memory.capacity_bytes / 2**30] * 2


def test_rows_share_the_height_of_a_page_within_limits() -> None:
    heights_in = [
        plot_timeline(MANY, stages=range(number), memory=False).get_figheight()
        for number in (1, 11, 12, 45, 80)
    ]
    rows_in = [height - heights_in[0] + 0.4 for height in heights_in]
    assert rows_in == pytest.approx([0.4, 4.4, 4.5, 4.5, 80 * 0.07])
    for number, every in ((16, 1), (17, 2), (80, 5)):
        axes = plot_timeline(MANY, stages=range(number), memory=False).axes[0]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [f"stage {stage}" for stage in range(0, number, every)]
        assert [int(place) for place in axes.get_yticks()] == [*range(0, number, every)]
        assert axes.get_ylim() == (number, 0)


@pytest.mark.parametrize("detail", [0, 1])
def test_bars_are_rectangles_in_their_lanes(detail: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars of a stage's own stream have an outline if they are wider than a point."""
    bars = BUCKETS.bars.where(BUCKETS.bars.seconds > 0)
    monkeypatch.setattr(iteration, "_MOST_DETAILED", len(bars) - 1 + detail)
    axes = plot_timeline(BUCKETS, memory=False).axes[0]
    top, height = lane_places(bars)
    end_s, outlines = BUCKETS.iteration_time_s, []
    for number, drawn in enumerate(axes.collections):
        own = bars.where(bars.activity == number)
        low = own.stage + top[lanes_of(own)]
        high = low + height[lanes_of(own)]
        corners = [own.start_s, low, own.start_s, high, own.end_s, high, own.end_s, low]
        shown = [path.vertices[:4].ravel() for path in drawn.get_paths()]
        assert np.array(shown).reshape(-1, 8) == pytest.approx(np.array(corners).T)
        is_own = lanes_of(own) == OWN
        has_outline = (own.seconds * 0.85 * 10 * 72 > end_s) & is_own & bool(detail)
        edges, faces = drawn.get_edgecolors()[:, :3], drawn.get_facecolors()[:, :3]
        assert (edges == np.where(has_outline[:, np.newaxis], 0, faces)).all()
        widths = np.broadcast_to(drawn.get_linewidths(), len(own))
        assert widths == pytest.approx(0.3 * (has_outline | ~is_own))
        assert bool(drawn.get_hatch()) == (bool(detail) and bool([*FILLS.values()][number][1]))
        assert drawn.get_rasterized() == (not detail)
        outlines += has_outline.tolist()
    assert {*outlines} == {False, *([True] * detail)}
    idle = np.array([each.get_bbox().bounds for each in axes.patches])
    expected = [(0, stage + top[OWN], end_s, height[OWN]) for stage in range(4)]
    assert idle == pytest.approx(np.array(expected))


@pytest.mark.parametrize("schedule", ["interleaved", "zbv"])
def test_passes_with_enough_room_show_their_microbatch(schedule: str) -> None:
    """A number stands within its pass, and passes with twice its room have one."""
    result = run(small({"interleave": 2}, schedule=schedule))
    figure = plot_timeline(result, memory=False, window_s=(0, result.iteration_time_s / 3))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    shown = {}
    for text in axes.texts:
        (left, low), (right, high) = axes.transData.inverted().transform(text.get_window_extent())
        shown[tuple(text.get_position())] = text.get_text(), right - left
        assert int(low) == int(high) and left >= 0 and right <= axes.get_xlim()[1]
    bars = result.bars.within([*range(4)], axes.get_xlim())
    widths = {text: width for text, width in shown.values()}
    end_s, num_shown = axes.get_xlim()[1], 0
    for place in np.flatnonzero(bars.microbatch >= 0).tolist():
        first, last = bars.start_s[place], min(bars.end_s[place], end_s)
        name = MARKS[ACTIVITIES[bars.activity[place]]] + str(bars.microbatch[place])
        middle = (first + last) / 2, bars.stage[place] + 0.05 + lane_places(bars)[1][OWN] / 2
        found = [each for at, each in shown.items() if np.allclose(at, middle)]
        assert [text for text, _ in found] in ([], [name])
        assert all(width <= last - first for _, width in found)
        assert found or name not in widths or last - first < 2 * widths[name]
        num_shown += len(found)
    assert num_shown == len(axes.texts) > 10
    assert not plot_timeline(MANY, memory=False).axes[0].texts


def test_a_window_limits_the_time_axis_to_the_iteration() -> None:
    end_s = RESULT.iteration_time_s
    axes = plot_timeline(RESULT, window_s=(end_s / 4, 9 * end_s)).axes
    assert axes[0].get_xlim() == (end_s / 4, end_s)


@pytest.mark.parametrize(
    ("stages", "window_s", "place"),
    [
        ([4], None, "stage 4"),
        ([-1], None, "stage -1"),
        ([], None, "no stage"),
        (None, (1.0, 1.0), "window 1 s to 1 s"),
        (None, (900.0, 901.0), "window 900 s to 901 s"),
    ],
)
def test_a_selection_outside_the_iteration_is_refused(
    stages: list[int] | None, window_s: tuple[float, float] | None, place: str
) -> None:
    with pytest.raises(InputError) as caught:
        plot_timeline(RESULT, stages, window_s)
    assert ": E118 " in str(caught.value) and place in str(caught.value)


def test_equal_timelines_are_identical_files(tmp_path: pathlib.Path) -> None:
    written = []
    for name in ("a.SVG", "b.svg"):
        file = tmp_path / name
        outcome = call("run", "gpt2_1_5b", "-o", str(file))
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        written.append(file.read_bytes())
    assert written[0] == written[1]


def test_a_footer_lists_the_values_that_differ_from_the_file() -> None:
    result = run(simtrain.load_scenario("table5_22b_full", ["batch.micro=2", "name=mine"]))
    unchanged = run(simtrain.load_scenario("table5_22b_full"))
    changes = {"recompute": "none", "precision.gradients": "bf16", "overlap.tensor_parallel": False}
    many = run(unchanged.scenario.replace(changes))
    more = run(unchanged.scenario.replace(changes | {"batch.micro": 2}))
    one_more = "with recompute.strategy=none, precision.gradients=bf16 and 1 more change"
    two_more = "with batch.micro=2, recompute.strategy=none and 2 more changes"
    for one, words in (
        (result, "mine with batch.micro=2"),
        (unchanged, "table5_22b_full"),
        (many, f"table5_22b_full {one_more}"),
        (more, f"table5_22b_full {two_more}"),
    ):
        assert footer_of_result(one).startswith(
            f"scenario {words} · profile a100_sxm4_80gb (SHA-256 "
        )
