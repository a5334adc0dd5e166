"""Sweep files: points of their grids, points that constraints exclude, and refused files."""

import dataclasses
import functools
import itertools
import math
import pathlib
import pickle
import tempfile
from collections import Counter
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.resources import list_sweeps
from simtrain.errors import InputError, Location
from simtrain.scenario import load_scenario
from simtrain.studies.sweep.axes import SweepAxis
from simtrain.studies.sweep.constraints import Constraint, _database, removed_by
from simtrain.studies.sweep.load import load_plan
from simtrain.studies.sweep.plan import SweepPlan
from tests.helpers.sweep_files import BASE, SMALL, plan_of, with_axes

# ------------------------------------------------------------------------------------- expansion


def a_plan(*axes: SweepAxis, part_size: int = 1) -> SweepPlan:
    return SweepPlan("x", None, "b", {"b": {}}, {}, axes, (), (), "mfu", {}, {}, part_size)


def axes_of(*lengths: int) -> tuple[SweepAxis, ...]:
    return tuple(
        SweepAxis(f"a{number}", (f"a{number}",), range(length))
        for number, length in enumerate(lengths)
    )


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 50))
def test_indices_are_the_product_of_the_axes_the_first_slowest(
    lengths: list[int], part_size: int
) -> None:
    plan = a_plan(*axes_of(*lengths), part_size=part_size)
    product = list(itertools.product(*(range(length) for length in lengths)))
    assert plan.num_points == len(product) == math.prod(lengths)
    assert [plan.positions(index) for index in range(plan.num_points)] == product
    parts = [plan.indices(number) for number in range(plan.num_parts)]
    assert [index for part in parts for index in part] == list(range(plan.num_points))
    assert all(parts)


def test_a_plan_does_not_store_its_points() -> None:
    plan = a_plan(*axes_of(10**5, 10**5, 10**5), part_size=1000)
    assert plan.num_points == 10**15
    assert plan.positions(10**15 - 1) == (99999, 99999, 99999)
    assert len(pickle.dumps(plan)) < 1000


def test_defaults_follow_the_values_of_axes(tmp_path: pathlib.Path) -> None:
    plan = plan_of(
        tmp_path,
        with_axes(
            "model.hidden_size: [64, 128]",
            "parallelism.interleave: [1, 2]",
            "hardware.inter_node.adapter_bandwidth: [100 Gb/s, 200 Gb/s]",
            "way: {plain: {recompute: none}, units: {recompute: {strategy: full, num_layers: 2}}}",
        ),
    )
    last = plan.scenario(plan.num_points - 1)
    assert (last.model.hidden_size, last.model.ffn_hidden_size) == (128, 512)
    assert (last.parallelism.interleave, last.schedule) == (2, "interleaved")
    assert last.hardware == {"inter_node": {"adapter_bandwidth": "200 Gb/s"}}
    assert (last.recompute.strategy, last.recompute.num_layers) == ("full", 2)
    assert plan.cells(plan.num_points - 1) == {
        "model.hidden_size": 128,
        "parallelism.interleave": 2,
        "hardware.inter_node.adapter_bandwidth": "200 Gb/s",
        "way": "units",
    }
    assert plan.scenario(0).recompute.strategy == "none"


def test_bases_are_an_axis_and_overridden(tmp_path: pathlib.Path) -> None:
    text = "axes:\n  base: [table5_22b_present, table5_175b_full]\n  batch.micro: [1, 2]\n"
    plan = plan_of(tmp_path, text, ["model.vocab_size=51328"])
    names = [plan.scenario(index).name for index in range(4)]
    assert names == ["table5_22b_present"] * 2 + ["table5_175b_full"] * 2
    expected = load_scenario("table5_175b_full", ["model.vocab_size=51328", "batch.micro=2"])
    assert plan.scenario(3).model_dump() == expected.model_dump()


@pytest.mark.parametrize("name", list_sweeps())
def test_shipped_sweeps_can_be_read(name: str) -> None:
    plan = load_plan(name)
    assert plan.name == name and plan.description and plan.num_points > 1


def test_the_digest_depends_only_on_what_changes_results(tmp_path: pathlib.Path) -> None:
    plan = plan_of(tmp_path)
    described = plan_of(tmp_path, "description: the same\n" + SMALL, part_size=5)
    assert described.digest == plan.digest
    for text, overrides in (
        (SMALL.replace("<= 16", "<= 15"), []),
        (SMALL.replace("[1, 4, 8]", "[4, 1, 8]"), []),
        (SMALL + "report: [mfu]\n", []),
        (SMALL + "objective: mfu\n", []),
        (SMALL, ["model.vocab_size=1024"]),
    ):
        assert plan_of(tmp_path, text, overrides).digest != plan.digest


@pytest.mark.parametrize(
    ("values", "column_type", "first"),
    [
        ((1, 2), int, 1),
        ((1, 2.5), float, 1.0),
        ((None, 5), int, None),
        ((True, False), bool, True),
        ((0, "auto"), str, "0"),
        ((False, 1), str, "false"),
        ((2**70, 1), str, str(2**70)),
        (({"strategy": "full"}, "none"), str, '{"strategy": "full"}'),
    ],
)
def test_the_type_of_a_column_fits_all_values_of_its_axis(
    values: tuple[Any, ...], column_type: type, first: Any
) -> None:
    axis = SweepAxis("x", ("x",), values)
    cell = a_plan(axis).cells(0)["x"]
    assert axis.column_type is column_type
    assert (cell, type(cell)) == (first, type(first))


# ----------------------------------------------------------------------------------- constraints

SCENARIO = load_scenario("table5_175b_present")


def value_of(text: str, **constants: float) -> bool | None:
    (value,) = Constraint(text, constants).values([SCENARIO])
    return value


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("tensor * pipeline * data == 64", True),
        ("tensor * pipeline * data = num_gpus", True),
        ("num_microbatches == global // (micro * data)", True),
        ("batch.global % 7 == 1 and not 9 < tensor", True),
        ("model.num_layers / 2 == 48.0 or 1 < 0", True),
        ("pipeline between 1 and 8 AND pipeline != interleave", True),
        ("min(tensor, 3, micro) == max(1, -2)", True),
        ("recompute == 'selective' and schedule != '1f1b'", True),
        ("tensor in (4, 8) and placement.order == 'tp-cp-ep-dp-pp'", True),
        ("sequence_parallel == true", True),
        ("recompute.num_layers == num_layers", False),
        ("overlap.pipeline", False),
        ("overlap.tensor_parallel", True),
        ("seq_length * hidden_size > most", False),
        ("last_stage_layers is null and imbalance is null", True),
        ("last_stage_layers is not null and last_stage_layers > 4", False),
        ("1 < 2", True),
    ],
)
def test_constraints_compute_as_written(text: str, holds: bool) -> None:
    assert value_of(text, most=1e9) is holds


@pytest.mark.parametrize(
    "text",
    [
        "tensor / (micro - 1) == 1",
        "tensor // (micro - 1) == 1",
        "tensor % (micro - 1) == 1",
        "last_stage_layers < 4",
        "last_stage_layers == null",
        "min(last_stage_layers, 4) < 5",
        "imbalance < 2",
        "tensor == 'eight'",
        "tensor * 10000000000 * 10000000000 > 1",
    ],
)
def test_constraints_have_no_value_where_a_number_is_missing(text: str) -> None:
    assert value_of(text) is None


@pytest.mark.parametrize(
    ("text", "code", "offset", "excerpt"),
    [
        ("tensor *", "E810", 0, "cannot be read"),
        ("", "E810", 0, "cannot be read"),
        ("1 + " * 300 + "1", "E810", 0, "longer than 500"),
        ("1 < tensor <= 8", "E810", 0, "use AND to combine"),
        ("tensor == 8 pipeline", "E810", 0, "cannot be read"),
        ("tensor == 8, pipeline", "E810", 0, "cannot be read"),
        ("tensor == 8) or (1 < 2", "E810", 0, "cannot be read"),
        ("tensor, (8", "E810", 0, "cannot be read"),
        ("[tensor] == 8", "E811", 0, "not allowed"),
        ("tensor == 8; pipeline", "E811", 11, "not allowed"),
        ("tensor == 8 -- all", "E811", 12, "not allowed"),
        ("tensor == 2 ** 3", "E811", 12, "not allowed"),
        ('recompute == "selective"', "E811", 13, "not allowed"),
        ("recompute == 'selective", "E811", 13, "not allowed"),
        ("(select 8) == tensor", "E812", 1, 'names "select"'),
        ("count(*) == 1", "E812", 0, 'names "count"'),
        ("global * tensr == 64", "E812", 9, 'names "tensr"'),
        ("Tensor == 8", "E812", 0, 'names "Tensor"'),
        ("tensor.real == 8", "E812", 0, 'names "tensor.real"'),
        ("scenario.__class__ == 1", "E812", 0, "names"),
        ("cluster == 'café' or tensr == 8", "E812", 21, "names"),
    ],
)
def test_invalid_constraints_are_refused_at_their_fault(
    text: str, code: str, offset: int, excerpt: str
) -> None:
    with pytest.raises(InputError, match=excerpt) as refused:
        Constraint(text, {}, Location("file", 1, 3, f"- {text}")).check()
    (problem,) = refused.value.problems
    assert problem.location is not None and problem.fix
    assert (problem.code, problem.location.column) == (code, 3 + offset)


def test_text_in_double_quotes_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(InputError, match="fix: write text in single quotes: '1f1b'"):
        Constraint('schedule == "1f1b"', {}).check()


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        ("recompute * 2 == 4", "cannot be evaluated"),
        ("recompute > 2", "cannot be evaluated"),
        ("tensor * pipeline", "neither true nor false"),
        ("'selective'", "neither true nor false"),
        ("min(tensor) == 8", "min"),
    ],
)
def test_constraints_that_are_no_conditions_are_errors(text: str, excerpt: str) -> None:
    with pytest.raises(InputError, match=f"E813 (.|\n)*{excerpt}"):
        value_of(text)


@given(st.text("tmicropnle*+-/%<>=() .0123456789'\"[]{}:,_abd", max_size=40))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        value = value_of(text)
    except InputError:
        return
    assert isinstance(value, bool | None)


def test_constraints_reach_no_file() -> None:
    connection = _database()
    for sql in ("select * from read_text('/etc/hostname')", "set enable_external_access = true"):
        with pytest.raises(duckdb.Error):
            connection.execute(sql)


# A number is a name, a literal or computed; a condition compares numbers or joins conditions.
NUMBERS = st.recursive(
    st.sampled_from(["tensor", "pipeline", "batch.micro", "few"]) | st.integers(0, 9).map(str),
    lambda numbers: (
        st.tuples(numbers, st.sampled_from("+-*"), numbers).map(lambda each: f"({' '.join(each)})")
        | st.tuples(st.sampled_from(["min", "max"]), numbers, numbers).map(
            lambda each: f"{each[0]}({each[1]}, {each[2]})"
        )
    ),
    max_leaves=4,
)
CONDITIONS = st.recursive(
    st.tuples(NUMBERS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS).map(" ".join),
    lambda conditions: (
        conditions.map(lambda each: f"not {each}")
        | st.tuples(conditions, st.sampled_from(["and", "or"]), conditions).map(" ".join)
    ),
    max_leaves=4,
)


@functools.cache
def grid() -> SweepPlan:
    with tempfile.TemporaryDirectory() as folder:
        return plan_of(pathlib.Path(folder), SMALL.partition("constraints:")[0])


@given(CONDITIONS)
def test_constraints_keep_the_points_that_python_keeps(text: str) -> None:
    """Python reads precedence, min, max and and/or/not in the same way."""
    plan = dataclasses.replace(grid(), constraints=(text,), constants={"few": 3}, places=(None,))
    points = {index: plan.scenario(index) for index in range(plan.num_points)}
    holds = {
        index: eval(
            text,
            {"few": 3, "batch": point.batch},
            {name: getattr(point.parallelism, name) for name in ("tensor", "pipeline")},
        )
        for index, point in points.items()
    }
    assert removed_by(plan, points) == {index: 0 for index in points if not holds[index]}


def test_a_constraint_is_evaluated_only_at_points_that_earlier_ones_keep() -> None:
    constraints = ("tensor > 1", "8 // (tensor - 1) > 1")
    plan = dataclasses.replace(grid(), constraints=constraints, places=(None, None))
    points = {index: plan.scenario(index) for index in range(plan.num_points)}
    assert Counter(removed_by(plan, points).values()) == {0: 8, 1: 8}
    swapped = dataclasses.replace(plan, constraints=constraints[::-1])
    with pytest.raises(InputError, match="E813") as refused:
        removed_by(swapped, points)
    assert "at point 0: parallelism.tensor: 1" in str(refused.value)


# ---------------------------------------------------------------------------------------- errors


def refusal_of(text: str, overrides: tuple[str, ...] = ()) -> str:
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(InputError) as refused:
            plan_of(pathlib.Path(folder), text, overrides)
        assert all(problem.fix for problem in refused.value.problems)
        return str(refused.value).replace(folder, "")


@pytest.mark.parametrize(
    ("lines", "head", "excerpt"),
    [
        (("parallelism.tensr: [1]",), ":5:3: E802", "did you mean parallelism.tensor?"),
        (("tensor: [1]",), ":5:3: E802", "did you mean parallelism.tensor?"),
        (("name: [a, b]",), ":5:3: E802", "is not a field"),
        (("hardware: [{}]",), ":5:14: E803", "sets no field"),
        (("hardware.gpu.peek: [1 s]",), ":5:23: E205", "is not an entry of the profile"),
        (("hardware.gpu.peak_flops: [1]",), ":5:29: E206", "1 has no unit"),
        (("cluster: [a100_sxm4_80gb, a100]",), ":5:29: E101", "no hardware profile"),
        (("batch.micro: []",), ":5:16: E803", "has no values"),
        (("batch.micro: 4",), ":5:16: E803", "must be a list of values, not 4"),
        (("batch.micro: {range: [4, 1, 1]}",), ":5:24: E803", "from 4 to 1 is empty"),
        (("batch.micro: {range: [1, 4, 0]}",), ":5:24: E803", "the step is 0"),
        (("batch.micro: {range: [1, 4]}",), ":5:24: E803", "must be 3 integers"),
        (("batch.micro: {range: [1, 4, 0.5]}",), ":5:24: E803", "must be 3 integers"),
        (("batch.micro: {range: [1, 1%s, 1]}" % ("0" * 30),), ":5:24: E803", "largest bound"),
        (("base: {range: [1, 900000000, 1]}",), ":5:9: E805", "must be the name of a scenario"),
        (("batch.micro: {range: [0, 4, 1]}",), ":5:16: E204", "greater than or equal to 1"),
        (("batch.micro: {powers_of_two: [5, 7]}",), ":5:32: E803", "no power of two"),
        (("batch.micro: {rnge: [1, 4, 1]}",), ":5:23: E803", "must set fields"),
        (("batch.micro: [1, 2, 1]",), ":5:23: E804", "has the value 1 twice"),
        (("batch.micro: [1, 0, two]",), ":5:20: E204", ":5:23: E203"),
        (("batch.micro: [1]", "batch.micro: [2]"), ":6:3: E107", "set twice"),
        (("batch.micro: [1]", "x: {a: {batch.micro: 2}}"), ":6:3: E804", "both set batch.micro"),
        (("recompute: [full]", "recompute.num_layers: [2]"), ":6:3: E804", "both set recompute"),
        (("x: {a: {recompute: full, recompute.method: block}}",), ":5:28: E804", "twice"),
        (("x: {a: {batch.mcro: 2}}",), ":5:11: E802", "did you mean batch.micro?"),
        (("x: {a: {batch: {}}}",), ":5:18: E803", "sets no field of batch"),
        (("x: {a: {batch.micro: 0}}",), ":5:24: E204", "greater than or equal to 1"),
        (("mfu: {a: {batch.micro: 2}}",), ":5:3: E808", "already have a column mfu"),
        (("Status: {a: {batch.micro: 2}}",), ":5:3: E808", "already have a column status"),
        (
            ("a: {x: {batch.micro: 2}}", "A: {x: {batch.global: 8}}"),
            ":6:3: E804",
            "the same column",
        ),
        (('x: {"\\ud800": {batch.micro: 2}}',), ":5:7: E106", "surrogate"),
        (('cluster: ["\\udc00"]',), ":5:13: E106", "surrogate"),
        (("base: [table5_22b_present]",), ":1:1: E806", "sets base at every point"),
        (("base: [table5_22b]",), ":5:10: E101", "did you mean table5_22b_full?"),
        (("base: [5]",), ":5:10: E805", "must be the name of a scenario"),
        (
            ("model.seq_length: {range: [1, 2000000, 1]}", "batch.micro: {range: [1, 999, 1]}"),
            ":4:1: E807",
            "2e+09 points",
        ),
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
        (BASE + AXES + "constraints: [tensor * mcro == 2]\n", ":5:24: E812", "names here are"),
        (BASE + AXES + 'constraints: ["micro *"]\n', ":5:16: E810", "cannot be read"),
        (BASE + AXES + "constraints: [micro < 5, tensor]\n", ":5:26: E813", "neither true nor"),
        (BASE + AXES + "constants: {n: 5}\n", ":5:13: E808", "used by no constraint"),
        (BASE + AXES + "constants: {tensor: 5}\n", ":5:13: E808", "know already"),
        (BASE + AXES + "constants: {Tensor: 5}\n", ":5:13: E808", "know already"),
        (BASE + AXES + "constants: {n: 5, N: 5}\n", ":5:13: E808", "know already"),
        (BASE + AXES + "constants: {a b: 5}\n", ":5:13: E808", "cannot be the name"),
        (BASE + AXES + "constants: {n: .nan}\n", ":5:16: E204", "finite"),
        (BASE + AXES + "report: [mfu, speed]\n", ":5:15: E809", '"speed" is not a column'),
        (BASE + AXES + "objective: capacity_bytes\n", ":5:12: E809", "is not an objective"),
        (BASE + AXES + "report: [mfu, mfu]\n", ":5:15: E809", "reported twice"),
    ],
)
def test_bad_sweeps_are_reported_with_their_place(text: str, head: str, excerpt: str) -> None:
    refusal = refusal_of(text)
    assert refusal.startswith(f"/small.yaml{head}")
    assert excerpt in refusal


def test_an_empty_grid_is_an_error_that_counts_points_by_constraint() -> None:
    text = BASE + AXES + "constraints: [tensor == 1, micro > 2, data == 1]\n"
    refusal = refusal_of(text)
    assert refusal.startswith("/small.yaml:5:1: E814 none of the 4 points")
    assert '"tensor == 1" removed 2, "micro > 2" removed 2\n' in refusal


def test_an_override_that_an_axis_overrides_is_refused() -> None:
    for override in ("batch.micro=2", "batch={micro: 2}", "batch. micro=2"):
        refusal = refusal_of(SMALL, (override,))
        assert refusal.startswith(f"--set {override}: E806 the axis batch.micro sets")
