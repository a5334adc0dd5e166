"""Figures of one iteration: contents, identical files, refused input."""

import pathlib

import pytest

import simtrain
from simtrain.errors import InputError
from simtrain.iteration.report.windows import windows_of
from simtrain.render.figures.iteration import plot_memory, plot_timeline
from simtrain.render.figures.style import footer_of_result
from tests.helpers.command_line import call
from tests.helpers.toys import run, small

pytestmark = pytest.mark.slow

RESULT = run(small())


def test_passes_with_enough_room_show_their_microbatch() -> None:
    """With one stage in the figure all passes have room for a number, with 64 stages none has."""
    figure = plot_timeline(RESULT, stages=[1])
    rows, memory = figure.axes
    numbers = sorted({text.get_text() for text in rows.texts})
    assert numbers == sorted(map(str, range(RESULT.scenario.num_microbatches)))
    assert [label.get_text() for label in rows.get_yticklabels()] == ["stage 1"]
    assert memory.get_ylabel() == "memory, GiB"
    assert rows.get_xlim() == (0.0, RESULT.iteration_time_s)
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words[:2] == ["forward", "backward"] and words[-2:] == ["optimizer", "idle"]

    many = run(small({"pipeline": 64}, model={"num_layers": 64}))
    axes = plot_timeline(many, memory=False).axes
    assert len(axes) == 1 and not axes[0].texts


def test_a_window_limits_the_time_axis_to_the_iteration() -> None:
    end_s = RESULT.iteration_time_s
    axes = plot_timeline(RESULT, window_s=(end_s / 4, 9 * end_s)).axes
    assert axes[0].get_xlim() == (end_s / 4, end_s)


def test_a_long_iteration_is_drawn_as_start_steady_part_and_end() -> None:
    long = run(small().replace({"batch.global": 120}))
    windows = windows_of(long)
    axes = plot_timeline(long).axes
    assert [each.get_xlim() for each in axes] == [*windows.values()] * 2
    assert [each.get_xlabel() for each in axes[3:]] == ["start, s", "steady part, s", "end, s"]
    assert len(plot_timeline(long, window_s=(0.0, long.iteration_time_s)).axes) == 2
    _, *curves = plot_memory(long).axes
    assert [each.get_xlim() for each in curves] == [*windows.values()]


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
    two_and_more = "recompute.strategy=none, precision.gradients=bf16 and 1 more change"
    for one, subject in (
        (result, "scenario mine with batch.micro=2"),
        (unchanged, "scenario table5_22b_full"),
        (many, f"scenario table5_22b_full with {two_and_more}"),
    ):
        assert footer_of_result(one).startswith(f"{subject} · profile a100_sxm4_80gb (SHA-256 ")
