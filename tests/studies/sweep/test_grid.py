"""Sweep files: the points of their grids, conditions, and refused files."""

import functools
import itertools
import json
import math
import pathlib
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.resources import find_scenario, list_sweeps
from simtrain.base.strict_yaml import apply_overrides, load_document, validate
from simtrain.errors import InputError, Location
from simtrain.scenario import RULES, Scenario, load_scenario
from simtrain.scenario.section import spell_out_words
from simtrain.studies.sweep.grid import Axis, Condition, Sweep, load_sweep
from tests.helpers.sweep_files import BASE, SMALL, sweep_of, with_axes


def a_sweep(*axes: Axis, part_size: int = 1) -> Sweep:
    return Sweep({}, "x", {"b": {}}, axes, (), {}, part_size)


def axes_of(*lengths: int) -> tuple[Axis, ...]:
    return tuple(Axis(f"a{number}", range(length)) for number, length in enumerate(lengths))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 50))
def test_indices_are_the_product_of_the_axes_the_first_slowest(
    lengths: list[int], part_size: int
) -> None:
    sweep = a_sweep(*axes_of(*lengths), part_size=part_size)
    product = list(itertools.product(*(range(length) for length in lengths)))
    assert sweep.num_points == len(product) == math.prod(lengths)
    positions = [tuple(place for _, place in sweep.positions(n)) for n in range(len(product))]
    assert positions == product
    parts = [sweep.indices(number) for number in range(sweep.num_parts)]
    assert [index for part in parts for index in part] == list(range(sweep.num_points))
    assert all(parts)


# Values of fields, or of whole sections.
VALUES: dict[str, list[Any]] = {
    "base": ["table5_22b_present", "table5_175b_full", "gpt2_1_5b"],
    "model.hidden_size": [6144, 12288],
    "parallelism.sequence_parallel": [True, False],
    "parallelism.interleave": [1, 3],
    "parallelism.last_stage_layers": [None, 5],
    "recompute": ["none", {"strategy": "full", "num_layers": 2}],
    "memory.zero_stage": [0, 1],
    "overlap": [{"pipeline": True}, {"data_parallel": True, "pipeline": False}],
    "hardware.inter_node.step_latency": ["5 us", "6 us"],
    "hardware.intra_node": [{"bandwidth": "300 GB/s"}, {"bandwidth": "150 GB/s"}],
    "cluster": ["a100_sxm4_80gb", "h100_sxm"],
}


@functools.cache
def wide() -> Sweep:
    return load_sweep({"axes": VALUES}, ["model.vocab_size=51328"])


@given(st.integers(0, math.prod(map(len, VALUES.values())) - 1))
def test_a_point_equals_the_scenario_of_a_file_with_its_values(index: int) -> None:
    """Defaults that follow from other fields are equal, too: the MLP's width, the schedule."""
    scenario, cells = wide().scenario(index), wide().cells(index)
    base = load_document(find_scenario(str(cells.pop("base"))))
    values = [f"{name}={cell if cell is not None else ''}" for name, cell in cells.items()]
    document = apply_overrides(spell_out_words(base), ["model.vocab_size=51328", *values])
    fresh = validate(Scenario, document.data, document.positions)
    assert scenario.model_dump(exclude={"name"}) == fresh.model_dump(exclude={"name"})
    assert scenario.model_fields_set == fresh.model_fields_set | {"name"}


def test_the_hash_depends_only_on_what_changes_results(tmp_path: pathlib.Path) -> None:
    digest = sweep_of(tmp_path).header["hash"]
    for text, overrides in (
        (SMALL.replace("<= 16", "<= 15"), []),
        (SMALL.replace("[1, 4, 8]", "[4, 1, 8]"), []),
        (SMALL + "objective: mfu\n", []),
        (SMALL, ["model.vocab_size=1024"]),
    ):
        assert sweep_of(tmp_path, text, overrides).header["hash"] != digest


@pytest.mark.parametrize(
    ("values", "column_type", "first"),
    [
        ((1, 2), int, 1),
        ((1, 2.5), float, 1.0),
        ((None, 5), int, None),
        ((True, False), bool, True),
        ((0, "auto"), str, "0"),
        ((False, 1), str, "false"),
        (({"strategy": "full"}, "none"), str, '{"strategy": "full"}'),
    ],
)
def test_the_type_of_a_column_fits_all_values_of_its_axis(
    values: tuple[Any, ...], column_type: type, first: Any
) -> None:
    axis = Axis("x", values)
    assert axis.column_type is column_type
    assert (axis.cell(0), type(axis.cell(0))) == (first, type(first))


# ------------------------------------------------------------------------------------ conditions

SCENARIO = load_scenario("table5_175b_present")


def value_of(text: str) -> bool | None:
    (value,) = Condition(text).holds([SCENARIO])
    return value


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("tensor * pipeline * data == 64", True),
        ("num_microbatches == global // (micro * data)", True),
        ("batch.global % 7 == 1 and not (tensor > 9)", True),
        ("pipeline between 1 and 8 AND pipeline != interleave", True),
        ("least(tensor, 3, micro) == greatest(1, -2)", True),
        ("recompute == 'selective' and schedule != '1f1b'", True),
        ("tensor in (4, 8) and placement.order == 'tp-cp-ep-dp-pp'", True),
        ("recompute.num_layers == num_layers", False),
        ("overlap.pipeline", False),
        ("seq_length * hidden_size > 1e9", False),
        ("last_stage_layers is null and imbalance is null", True),
        ("1 < 2", True),
        ("tensor / (micro - 1) == 1", None),
        ("last_stage_layers < 4", None),
        ("tensor == 'eight'", None),
        ("tensor * 10000000000 * 10000000000 > 1", None),
    ],
)
def test_conditions_compute_as_sql_does(text: str, holds: bool | None) -> None:
    """Null where a number is missing, or cannot be computed."""
    assert value_of(text) is holds


@pytest.mark.parametrize(
    ("text", "code", "excerpt"),
    [
        ("tensor *", "E810", "cannot be read"),
        ("tensor == 8) or (1 < 2", "E810", "cannot be read"),
        ('recompute == "selective"', "E810", "text with 'text'"),
        ("scenario.__class__ == 1", "E810", "not found"),
        ("count(*) == 1", "E810", "aggregate|neither"),
        ("recompute * 2 == 4", "E810", "cannot be read"),
        ("tensor * pipeline", "E810", "neither true nor false"),
        ("(select count(*) from read_text('/etc/hostname')) == 1", "E810", "scalar subquery"),
    ],
)
def test_conditions_that_are_none_are_refused(text: str, code: str, excerpt: str) -> None:
    place = Location("file", 1, 3, f"- {text}")
    with pytest.raises(InputError, match=excerpt) as refused:
        Condition(text, place).holds([SCENARIO, SCENARIO])
    (problem,) = refused.value.problems
    assert problem.fix and (problem.code, problem.location) == (code, place)


@given(st.text("tmicropnle*+-/%<>=() .0123456789'\"[]{}:,_abd", max_size=40))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        value = value_of(text)
    except InputError:
        return
    assert isinstance(value, bool | None)


def test_a_condition_is_needed_only_where_earlier_ones_hold(tmp_path: pathlib.Path) -> None:
    grid, *_ = SMALL.partition("constraints:")
    sweep = sweep_of(tmp_path, grid + "constraints: [tensor > 1, 8 // (tensor - 1) > 1]\n")
    points = {index: sweep.scenario(index) for index in range(sweep.num_points)}
    kept = sweep.kept(points).values()
    assert {point.parallelism.tensor for point in kept} == {4} and len(kept) == 8
    sweep = sweep_of(tmp_path, grid + "constraints: [8 // (tensor - 1) > 1]\n")
    with pytest.raises(InputError, match=r"E810(.|\n)*at point 0: parallelism.tensor: 1"):
        sweep.kept(points)


# ---------------------------------------------------------------------------------------- errors


def refusal_of(text: str, overrides: tuple[str, ...] = ()) -> str:
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(InputError) as refused:
            sweep_of(pathlib.Path(folder), text, overrides)
        assert all(problem.fix for problem in refused.value.problems)
        return str(refused.value).replace(folder, "")


@pytest.mark.parametrize(
    ("lines", "head", "excerpt"),
    [
        (("parallelism.tensr: [1]",), ":5:3: E802", "did you mean parallelism.tensor?"),
        (("hardware: [{}]",), ":5:14: E803", "sets no field"),
        (("hardware.gpu.peek: [1 s]",), ":5:23: E205", "is not an entry of the profile"),
        (("hardware.gpu.peak_flops: [1]",), ":5:29: E206", "1 has no unit"),
        (("cluster: [a100_sxm4_80gb, a100]",), ":5:29: E101", "no hardware profile"),
        (("batch.micro: []",), ":5:16: E803", "has no values"),
        (("batch.micro: 4",), ":5:16: E803", "4 has no values"),
        (("batch.micro: {range: [4, 1, 1]}",), ":5:16: E803", "has no values"),
        (("batch.micro: {range: [1, 1%s, 1]}" % ("0" * 30),), ":5:16: E803", "or too many"),
        (("base: {range: [1, 9, 1]}",), ":5:9: E805", "must be the name of a scenario"),
        (("batch.micro: {range: [0, 4, 1]}",), ":5:16: E204", "greater than or equal to 1"),
        (("batch.micro: {rnge: [1, 4, 1]}",), ":5:23: E803", "must set fields"),
        (("batch.micro: [1, 2, 1]",), ":5:23: E804", "has the value 1 twice"),
        (("batch.micro: [1, 0, two]",), ":5:20: E204", ":5:23: E203"),
        (("batch.micro: [1]", "batch.micro: [2]"), ":6:3: E107", "set twice"),
        (("batch.micro: [1]", "x: {a: {batch.micro: 2}}"), ":6:3: E804", "both set batch.micro"),
        (("recompute: [full]", "recompute.num_layers: [2]"), ":6:3: E804", "both set recompute"),
        (("x: {a: {recompute: full, recompute.method: block}}",), ":5:28: E804", "twice"),
        (("x: {a: {batch.mcro: 2}}",), ":5:11: E802", "did you mean batch.micro?"),
        (("x: {a: {batch: {}}}",), ":5:11: E803", "sets batch to nothing"),
        (("mfu: {a: {batch.micro: 2}}",), ":5:3: E808", "already have a column mfu"),
        (("a: {x: {batch.micro: 2}}", "A: {x: {batch.global: 8}}"), ":6:3: E804", "are one column"),
        (('cluster: ["\\udc00"]',), ":5:16: E106", "invalid Unicode"),
        (("base: [5]",), ":5:10: E805", "must be the name of a scenario"),
    ],
)
def test_bad_axes_are_reported_with_their_place(
    lines: tuple[str, ...], head: str, excerpt: str
) -> None:
    refusal = refusal_of(with_axes(*lines))
    assert refusal.startswith(f"/small.yaml{head}")
    assert excerpt in refusal


AXES = "axes: {parallelism.tensor: [1, 2], batch.micro: [1, 2]}\n"


@pytest.mark.parametrize(
    ("text", "head", "excerpt"),
    [
        (BASE, ":1:1: E202", "axes is missing"),
        (BASE + "axes: {}\n", ":4:1: E801", "no axes"),
        (BASE + AXES + "axs: {}\n", ":5:1: E201", "did you mean axes?"),
        (AXES, ":1:1: E805", "no base scenario"),
        ("base: nothing_like_it\n" + AXES, ":1:7: E101", "there is no scenario named"),
        (BASE.replace("64,", "x,", 1) + AXES, ":2:39: E203", "must be an integer"),
        (BASE + AXES + "constraints: [micro < 5, tensor]\n", ":5:26: E810", "neither true nor"),
        (BASE + AXES + "objective: capacity_bytes\n", ":5:12: E809", "is not an objective"),
    ],
)
def test_bad_sweeps_are_reported_with_their_place(text: str, head: str, excerpt: str) -> None:
    refusal = refusal_of(text)
    assert refusal.startswith(f"/small.yaml{head}")
    assert excerpt in refusal


def test_an_override_that_an_axis_overrides_is_refused() -> None:
    for override in ("batch.micro=2", "batch={micro: 2}", "batch. micro=2"):
        refusal = refusal_of(SMALL, (override,))
        assert refusal.startswith(f"--set {override}: E806 an axis sets batch.micro")


def test_a_sweep_may_be_data(tmp_path: pathlib.Path) -> None:
    data = {"base": load_scenario("gpt2_1_5b"), "axes": {"batch.micro": [1, 2]}}
    assert load_sweep(data).scenario(1).batch.micro == 2
    with pytest.raises(InputError, match="E114"):
        load_sweep({"base": object(), "axes": {}})
    assert json.loads(json.dumps(load_sweep(data).header))["num_points"] == 2


def test_an_axis_has_at_most_so_many_values_however_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simtrain.studies.sweep.grid._MOST_VALUES", 4)
    for most in (4, 5):
        labels = {str(number): {"batch.micro": number + 1} for number in range(most)}
        values = [*range(1, most + 1)]
        for written in (values, {"range": [1, most, 1]}, {"range": [1, 2 * most, 2]}, labels):
            data = {
                "base": "gpt2_1_5b",
                "axes": {"x" if written is labels else "batch.micro": written},
            }
            if most == 4:
                assert load_sweep(data).num_points == 4
            else:
                with pytest.raises(InputError, match="E803"):
                    load_sweep(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_sweeps())
def test_most_points_of_a_shipped_sweep_are_legal(name: str) -> None:
    sweep = load_sweep(name)
    points = {index: sweep.scenario(index) for index in range(sweep.num_points)}
    scenarios = [*sweep.kept(points).values()]
    assert sweep.name == name and sweep.file["description"]
    assert 5 <= len(scenarios) <= 250
    illegal = [each for each in scenarios if any(rule.check(each) for rule in RULES)]
    assert len(illegal) <= 0.4 * len(scenarios)
