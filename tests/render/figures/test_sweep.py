"""`simtrain plot`: data of the figures, their drawing, identical files, refused input."""

import itertools
import json
import pathlib
from xml.etree import ElementTree

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread

from simtrain.base.version import VERSION
from simtrain.render.figures.style import styled
from simtrain.render.figures.sweep import Results, load_results
from simtrain.render.figures.sweep.heat_map import HeatMap, Place, draw_heat_map, heat_map
from simtrain.render.figures.sweep.pareto import draw_pareto, pareto
from simtrain.render.figures.sweep.quantities import shown
from simtrain.render.figures.sweep.results import group
from simtrain.render.figures.sweep.scaling import draw_scaling, efficiency, scaling
from simtrain.studies.sweep.load import load_plan
from tests.helpers.command_line import call
from tests.helpers.made_results import GIB, nothing, ran, row, write_plan, write_results
from tests.render.figures.test_labels import check

pytestmark = pytest.mark.slow

# Rates by recompute and microbatch. Recompute has the largest effect; "paint" has almost none.
RATES = {("none", 1): 300.0, ("none", 2): 400.0, ("full", 1): 100.0, ("full", 2): 120.0}
PICTURES = ("heat_map", "pareto", "scaling")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Write results over three axes. With microbatches of 4, "none" does not fit and "full" is
    illegal.
    """
    rows = []
    for strategy in ("none", "full"):
        for micro in (1, 2, 4):
            for paint in ("red", "blue"):
                results = (
                    nothing("illegal", "E314") if strategy == "full" else nothing("does_not_fit")
                )
                if (strategy, micro) in RATES:
                    rate = RATES[strategy, micro] - (paint == "blue")
                    results = ran(rate, 10 * micro, num_gpus=8 * micro)
                axes = {"recompute": strategy, "batch.micro": micro, "paint": paint}
                rows.append(row(len(rows), axes, **results))
    return write_results(tmp_path / "results", rows)


@pytest.fixture
def results(folder: pathlib.Path) -> Results:
    return load_results(folder)


def cells(picture: HeatMap) -> dict[Place, float]:
    """Return the value of each cell of a heat map without panels."""
    return {place: one[picture.value] for place, one in picture.best("").items()}


def words_in(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_axes_are_the_columns_between_index_and_status(results: Results) -> None:
    assert results.axes == ("recompute", "batch.micro", "paint")
    assert results.values("batch.micro") == [1, 2, 4]
    assert results.values("recompute") == ["none", "full"]
    assert results.table.num_rows == 12 and results.ran.num_rows == 8


def test_the_heat_map_shows_the_most_influential_axes_and_the_best_over_the_others(
    results: Results,
) -> None:
    picture = heat_map(results, "tokens_per_s", None, None)
    assert picture is not None
    assert (picture.x, picture.y) == ("batch.micro", "recompute")
    assert cells(picture) == {(micro, name): rate for (name, micro), rate in RATES.items()}
    assert picture.reasons("")[(4, "none")] == "too big"
    assert picture.reasons("")[(4, "full")] == "illegal"


def test_a_cell_names_the_folded_value_of_its_best_point(tmp_path: pathlib.Path) -> None:
    """All best points have the same c, but not the same b."""
    rows = [
        row(at, {"a": a, "b": b, "c": c, "d": d}, **ran(100 + 50 * (a == b) - c + 10 * d, 10))
        for at, (a, b, c, d) in enumerate(itertools.product((1, 2), (1, 2), (1, 2), (1, 2)))
    ]
    picture = heat_map(load_results(write_results(tmp_path, rows)), "tokens_per_s", "a", "d")
    assert picture is not None and picture.folded == ["b", "c"]
    assert {name: picture.best("")[2, 1][name] for name in picture.folded} == {"b": 2, "c": 1}
    figure = draw_heat_map(picture)
    assert sorted(words_in(figure)).count("b 2") == 2
    (note,) = (text.get_text() for text in figure.texts if text.get_text().startswith("Each"))
    assert note == "Each cell has the best over b (named), c (always 1)."


def test_the_named_axis_and_the_objective_of_the_sweep_are_the_defaults(
    tmp_path: pathlib.Path,
) -> None:
    plan = load_plan("recompute_strategies")
    rows = [
        row(at, plan.cells(at), **ran(9e3 / plan.cells(at)["model.seq_length"] + at / 1e4, 10))
        for at in range(plan.num_points)
    ]
    write_plan(tmp_path, plan)
    results = load_results(write_results(tmp_path, rows, 100))
    picture = heat_map(results, "mfu", None, None)
    assert picture is not None and "strategy" in (picture.x, picture.y)
    assert results.header.objective == "mfu" and results.name == plan.name


def test_an_axis_that_another_determines_is_not_the_second_axis(tmp_path: pathlib.Path) -> None:
    rows = [
        row(at, {"tensor": t, "pipeline": 8 // t, "c": c}, **ran(100 * t + c, 10))
        for at, (t, c) in enumerate(itertools.product((1, 2, 4, 8), (1, 2)))
    ]
    picture = heat_map(load_results(write_results(tmp_path, rows)), "mfu", None, None)
    assert picture is not None and {picture.x, picture.y} in ({"tensor", "c"}, {"pipeline", "c"})
    assert picture.folded == []


def test_a_front_of_equal_memory_has_a_note_and_an_axis_from_zero(tmp_path: pathlib.Path) -> None:
    rows = [row(at, {"a": at}, **ran(10 + at, 60), capacity_bytes=80 * GIB) for at in range(3)]
    picture = pareto(load_results(write_results(tmp_path, rows)))
    assert picture is not None
    figure = draw_pareto(picture)
    low, high = figure.axes[0].get_xlim()
    assert low == 0 and high > 80
    assert "capacity, 80 GiB" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert any("All points need the same memory" in text.get_text() for text in figure.texts)


def test_percentages_of_curves_that_meet_do_not_overlap(tmp_path: pathlib.Path) -> None:
    """Two clusters differ by one percent, at three sizes."""
    rows = [
        row(at, {"cluster": name, "n": n}, **ran(1000 * n**0.9 * (1 + 0.01 * at), 10, num_gpus=n))
        for at, (name, n) in enumerate(itertools.product("ab", (8, 16, 32)))
    ]
    picture = scaling(load_results(write_results(tmp_path, rows), panels="cluster"))
    assert picture is not None
    figure = draw_scaling(picture)
    check(figure)
    assert len(words_in(figure)) == 4


def test_every_footer_names_sweep_changes_profile_and_version(tmp_path: pathlib.Path) -> None:
    plan = load_plan("interleave", ["model.seq_length=1024"])
    rows = [row(at, plan.cells(at), **ran(10 + at, 5)) for at in range(plan.num_points)]
    write_plan(tmp_path, plan)
    assert call("plot", str(write_results(tmp_path, rows))).exit_code == 0
    (digest,) = plan.profiles.values()
    profile = f"profile a100_sxm4_80gb (SHA-256 {digest[:8]})"
    origin = f"sweep interleave with model.seq_length=1024 · {profile} · simtrain {VERSION}"
    for name in ("heat_map", "pareto"):
        picture = (tmp_path / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
        assert f"<!-- {origin} -->" in picture


def test_the_best_time_is_the_shortest(results: Results) -> None:
    picture = heat_map(results, "iteration_time_s", None, None)
    assert picture is not None
    assert cells(picture)[(1, "none")] == pytest.approx(1000 / 300)


def test_given_axes_are_used(results: Results) -> None:
    for x, y in (("paint", "recompute"), ("recompute", "paint")):
        picture = heat_map(results, "mfu", x, y)
        assert picture is not None and (picture.x, picture.y) == (x, y)
    upright = heat_map(results, "mfu", None, "batch.micro")
    assert upright is not None and (upright.x, upright.y) == ("recompute", "batch.micro")


def test_a_column_of_zeros_can_be_drawn(results: Results) -> None:
    picture = heat_map(results, "breakdown_bubble_s", None, None)
    assert picture is not None and set(cells(picture).values()) == {0.0}
    draw_heat_map(picture)


def test_each_cell_of_the_heat_map_has_one_text(results: Results) -> None:
    picture = heat_map(results, "tokens_per_s", None, None)
    assert picture is not None
    words = words_in(draw_heat_map(picture))
    assert sorted(words) == sorted(["300", "400", "100", "120", "too big", "illegal"])


def test_each_model_has_a_panel_with_its_own_best(tmp_path: pathlib.Path) -> None:
    """The best of each model has a share of 1, even if the other model is much faster."""
    rows = [
        row(at, {"base": base, "a": a, "b": b}, **ran(rate * a * b, 10))
        for at, (base, rate, a, b) in enumerate(
            (base, rate, a, b)
            for base, rate in (("small", 1e4), ("large", 1.0))
            for a in (1, 2)
            for b in (1, 3)
        )
    ]
    results = load_results(write_results(tmp_path, rows))
    assert results.panels == ["small", "large"]
    assert results.varying() == ["a", "b"]
    picture = heat_map(results, "tokens_per_s", None, None)
    assert picture is not None
    small, large, _ = draw_heat_map(picture).axes
    for axes in (small, large):
        assert axes.images[0].get_array().max() == 1.0
    assert (small.get_title(loc="left"), large.get_title(loc="left")) == ("small", "large")
    assert load_results(tmp_path, panels="a").panels == [1, 2]


def test_the_front_has_only_undominated_points(results: Results) -> None:
    """Recompute "none" reaches 300 tokens/s with 10 GiB, and 400 tokens/s with 20 GiB on twice the
    GPUs: more GPU-seconds per token.
    """
    picture = pareto(results)
    assert picture is not None and picture.unit == "GPU-seconds per million tokens"
    (row,) = picture.front("")
    found = {"index": 0, "peak_bytes": 10 * GIB, "time": 8e6 / 300}
    assert row == found | {"recompute": "none", "batch.micro": 1, "paint": "red"}


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("tokens_per_s", 999.4, "999"),
        ("tokens_per_s", 999.7, "1.00k"),
        ("tokens_per_s", 48_010.0, "48.0k"),
        ("tokens_per_s", 999_700.0, "1.00M"),
        ("tokens_per_s", 1.5e9, "1500M"),
        ("iteration_time_s", 13.4631, "13.46"),
        ("iteration_time_s", 123_456.0, "123456"),
        ("peak_bytes", 79.15 * GIB, "79.2"),
        ("mfu", 0.5251, "52.5%"),
        ("breakdown_bubble_s", 0.0, "0"),
        ("breakdown_bubble_s", 999.7, "1000"),
    ],
)
def test_numbers_have_few_digits(column: str, value: float, words: str) -> None:
    assert shown(column, value) == words


@settings(max_examples=20)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=12, unique=True
    )
)
def test_a_point_is_on_the_front_unless_another_is_as_good_in_both(
    sizes: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [row(at, {"a": at}, **ran(1000 / time, gib)) for at, (gib, time) in enumerate(sizes)]
    picture = pareto(load_results(write_results(tmp_path_factory.mktemp("r"), rows, 100)))
    assert picture is not None and picture.unit == "iteration time, s"
    expected = {
        (gib, time)
        for gib, time in sizes
        if not any(g <= gib and t <= time and (g, t) != (gib, time) for g, t in sizes)
    }
    front = picture.front("")
    assert {sizes[row["index"]] for row in front} == expected
    assert [row["peak_bytes"] for row in front] == sorted(row["peak_bytes"] for row in front)
    assert words_in(draw_pareto(picture)) == [str(n + 1) for n in range(len(front))][:12]


def test_linear_scaling_starts_at_the_smallest_number_of_gpus(results: Results) -> None:
    picture = scaling(results)
    assert picture is not None
    assert picture.curves == {"": {8: 300.0, 16: 400.0}}
    assert efficiency(picture.curves[""]) == {8: 1.0, 16: 400 / 600}
    with styled():
        figure = draw_scaling(picture)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels(which="both")]
    assert any(labels) and not any("$" in label for label in labels)
    ideal, best = figure.axes[0].lines
    assert list(ideal.get_ydata()) == [300, 600] and list(best.get_ydata()) == [300, 400]
    assert words_in(figure) == ["67%"]


@pytest.mark.ci
def test_equal_results_give_identical_files(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = call("plot", str(folder))
    assert done.exit_code == 0
    assert call("plot", str(folder), "--out", str(tmp_path / "again")).exit_code == 0
    for name in PICTURES:
        for kind in ("png", "svg"):
            one = folder / "pictures" / f"{name}.{kind}"
            assert one.read_bytes() == (tmp_path / "again" / one.name).read_bytes()
            assert str(one) in done.stdout.replace("\n", "")
        image = imread(folder / "pictures" / f"{name}.png")
        assert image.shape[1] == 1500 and image.std() > 0.02, "blank"
        root = ElementTree.parse(folder / "pictures" / f"{name}.svg").getroot()
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20


@pytest.mark.ci
def test_the_page_shows_the_front_and_json_has_all_figures(folder: pathlib.Path) -> None:
    page = call("plot", str(folder)).stdout
    assert "GPU-seconds per million tokens" in page
    assert "recompute: none, batch.micro: 1, paint: red" in page
    data = json.loads(call("plot", str(folder), "--json").stdout)
    assert data["fronts"][""][0]["index"] == 0
    assert data["scaling"] == {"": {"8": 300.0, "16": 400.0}}
    assert len(data["pictures"]) == 6 and data["left_out"] == {}


def test_groups_are_in_the_order_of_their_first_rows() -> None:
    """Arrow's threads, one per chunk of the table, would reorder 1,000 chunks in most runs."""
    chunks = [pyarrow.table({"a": [at, at + 1]}) for at in range(1000)]
    rows = group(pyarrow.concat_tables(chunks), ["a"]).aggregate([]).to_pylist()
    assert [row["a"] for row in rows] == list(range(1001))


def test_figures_without_data_are_listed_with_a_reason(tmp_path: pathlib.Path) -> None:
    folder = write_results(tmp_path, [row(at, {"a": at}, **ran(10 + at, 5)) for at in range(3)])
    data = json.loads(call("plot", str(folder), "--json").stdout)
    assert set(data["left_out"]) == {"heat_map", "scaling"}
    assert "fewer than two axes vary" in call("plot", str(folder)).stdout


def test_null_is_a_value_of_an_axis(tmp_path: pathlib.Path) -> None:
    rows = [
        row(at, {"a": a, "b": b}, **ran(10 + at, 5 + at))
        for at, (a, b) in enumerate((a, b) for a in (4, None, 2) for b in (True, False))
    ]
    folder = write_results(tmp_path, rows)
    assert load_results(folder).values("a") == [None, 2, 4]
    assert call("plot", str(folder)).exit_code == 0
    fronts = json.loads(call("plot", str(folder), "--panels", "a", "--json").stdout)["fronts"]
    first = {panel: front[0]["index"] for panel, front in fronts.items()}
    assert first == {"null": 2, "2": 4, "4": 0}


def test_a_panel_in_which_nothing_ran_is_empty(tmp_path: pathlib.Path) -> None:
    rows = [
        row(2 * at + micro, {"base": base, "micro": micro}, **results)
        for at, (base, results) in enumerate({"22b": ran(9, 5), "1t": nothing("illegal")}.items())
        for micro in (0, 1)
    ]
    outcome = call("plot", str(write_results(tmp_path, rows)), "--json")
    assert outcome.exit_code == 0
    assert json.loads(outcome.stdout)["fronts"]["1t"] == []


def test_names_are_not_parsed_as_formulas_and_are_shortened(tmp_path: pathlib.Path) -> None:
    rows = [
        row(2 * at + micro, {"$x^$": name, "micro$": micro}, **ran(9 + at, 5))
        for at, name in enumerate(("$a_{", "y" * 300))
        for micro in (0, 1)
    ]
    outcome = call("plot", str(write_results(tmp_path, rows)), "--x", "$x^$")
    assert (outcome.exit_code, outcome.stderr) == (0, "")


def test_parts_of_another_sweep_are_refused(tmp_path: pathlib.Path) -> None:
    write_results(tmp_path, [row(at, {"a": at}, **ran(1, 1)) for at in range(2)], part_size=1)
    other = write_results(tmp_path / "other", [row(0, {"b": 1}, **ran(1, 1))])
    foreign = tmp_path / "parts" / "part-000001.parquet"
    (other / "parts" / "part-000000.parquet").replace(foreign)
    outcome = call("plot", str(tmp_path))
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"{foreign}: E862")


def test_results_without_a_comparable_column_are_refused(tmp_path: pathlib.Path) -> None:
    rows = [row(at, {"a": at}, num_gpus=8) for at in range(3)]
    outcome = call("plot", str(write_results(tmp_path, rows)))
    assert outcome.exit_code == 2
    assert ": E864 no column" in outcome.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--x", "batch.macro"], '"batch.macro"'),
        (["--x", "paint", "--y", "paint"], "--x and --y are both paint"),
        (["--value", "mfus"], "did you mean mfu?"),
        (["--value", "num_gpus"], '"num_gpus"'),
        (["--panels", "painting"], "did you mean paint?"),
    ],
)
def test_unknown_names_are_refused(folder: pathlib.Path, options: list[str], words: str) -> None:
    done = call("plot", str(folder), *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "E864 " in done.stderr and words in done.stderr


def test_results_that_cannot_be_drawn_are_refused(tmp_path: pathlib.Path) -> None:
    assert "E861 " in call("plot", str(tmp_path / "none")).stderr
    rows = [row(at, {"a": at}, **nothing("illegal", "E301")) for at in range(3)]
    nowhere = call("plot", str(write_results(tmp_path / "illegal", rows)))
    assert nowhere.exit_code == 2 and "E863 " in nowhere.stderr
    good = write_results(tmp_path / "cut", [row(0, {"a": 1}, **ran(1, 1))])
    part = good / "parts" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    broken = call("plot", str(good))
    assert (broken.exit_code, broken.stdout) == (2, "")
    assert broken.stderr.startswith(f"{part}: E862 ")
    assert not (good / "pictures").exists()
