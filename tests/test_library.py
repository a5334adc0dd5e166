"""What `import simtrain` gives: studies in one line, short texts, errors for wrong arguments."""

import inspect
import itertools
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

import simtrain
from simtrain.errors import InputError
from tests.helpers.command_line import ROOT
from tests.helpers.toys import run, small

RESULT = run(small())
SCENARIO = RESULT.scenario


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rows of a sweep with one process."""
    folder = tmp_path_factory.mktemp("sweep")
    file = folder / "lengths.yaml"
    file.write_text("base: gpt2_1_5b\naxes: {model.seq_length: [512, 1024]}\n", encoding="utf-8")
    return simtrain.sweep(file, folder / "results", ["batch.micro=1"])


def test_a_sweep_returns_its_rows_in_order(rows: Any) -> None:
    assert [row["model.seq_length"] for row in rows.records()] == [512, 1024]
    scenario = simtrain.load_scenario("gpt2_1_5b", ["batch.micro=1", "model.seq_length=512"])
    time_s = simtrain.simulate(scenario).iteration_time_s
    assert rows.records()[0]["iteration_time_s"] == time_s


def test_a_cost_reads_the_words_of_the_command_line() -> None:
    cost, same = simtrain.cost(RESULT, "1B", price="3 USD/h"), simtrain.cost(RESULT, 10**9)
    assert cost.time_s == same.time_s
    assert cost.price == pytest.approx(3 * cost.gpu_hours)


def test_a_plan_marks_the_rows_that_meet_its_limits() -> None:
    (row,) = simtrain.plan(SCENARIO, "1B", [SCENARIO.cluster], [4], days=1e-3).rows
    assert row.misses == ("days",)
    plan = simtrain.plan(SCENARIO, "1B", [SCENARIO.cluster], [4], days=1000)
    assert plan.fastest is not None and plan.fastest.num_gpus == 4


def test_every_scenario_and_profile_is_listed() -> None:
    for names, folder in (
        (simtrain.scenarios(), "scenarios"),
        (simtrain.profiles(), "hw_profiles"),
    ):
        assert names == sorted(file.stem for file in (ROOT / folder).glob("*.yaml"))


def test_every_value_prints_on_a_short_line(rows: Any) -> None:
    plan = simtrain.plan(SCENARIO, "1B", [SCENARIO.cluster], [4])
    search = simtrain.search(SCENARIO, [4], top=1)
    (curve, *_) = simtrain.resource_curves(RESULT, (1, 2.0))
    values = [
        *(RESULT, RESULT.breakdown, RESULT.timeline, RESULT.memory, RESULT.memory_curve(0)),
        *(RESULT.operators(), RESULT.operators().rows[0], RESULT.plan, RESULT.profile),
        *(RESULT.seconds, RESULT.iteration, SCENARIO, simtrain.cost(RESULT, "1B"), plan),
        *(plan.rows[0], search, search.ranked[0], search.ranked[0].run, rows, curve),
        *(curve.points[0], simtrain.sensitivity(SCENARIO), *simtrain.compare(RESULT, RESULT)),
    ]
    for value in values:
        assert len(repr(value)) <= 300 and "\n" not in repr(value), type(value)
        assert not re.search(r"\d\.\d{9}", repr(value)), repr(value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simtrain.simulate("gpt2_1_5b"), '"gpt2_1_5b" is a name, not a Scenario'),
        (lambda: simtrain.simulate(SCENARIO, "h100_sxm"), 'profile=load_profile("h100_sxm")'),
        (lambda: simtrain.compare(SCENARIO, SCENARIO), "simulate first: simulate(scenario)"),
        (lambda: simtrain.cost("gpt2_1_5b", "1B"), 'simulate(load_scenario("gpt2_1_5b"))'),
        (lambda: simtrain.cost(RESULT, "many"), '"many" is not a quantity of tokens'),
        (lambda: simtrain.cost(RESULT, "1B", goodput="all"), "goodput is 'all'"),
        (lambda: simtrain.plan(SCENARIO, "1B", "h100_sxm", [8]), "write clusters=['h100_sxm']"),
        (lambda: simtrain.plan(SCENARIO, "1B", ["h100_sxm"], "8"), "write gpus=[8]"),
        (lambda: simtrain.search(SCENARIO, "8"), "write gpus=[8]"),
        (lambda: simtrain.sweep({"base": "gpt2_1_5b"}, "out"), "of type dict is not a path"),
        (lambda: simtrain.sensitivity(RESULT), "an object of type Result is not a Scenario"),
        (lambda: simtrain.sensitivity(SCENARIO, factor="2"), "factor is '2'"),
        (lambda: simtrain.resource_curves(SCENARIO), "is not a Result"),
        (lambda: simtrain.plot_timeline(SCENARIO), "is not a Result"),
        (lambda: simtrain.plot_breakdown(SCENARIO), "is not a Result"),
        (lambda: simtrain.plot_memory(SCENARIO), "is not a Result"),
        (lambda: simtrain.write_trace(SCENARIO, "x.json"), "is not a Result"),
        (lambda: SCENARIO.replace(4), 'write scenario.replace({"parallelism.tensor": 4})'),
        (lambda: RESULT.frame(4), 'a result has no table "4"'),
        (lambda: simtrain.compare([RESULT, RESULT]), "write compare(*results)"),
        (lambda: simtrain.load_scenario("gpt2_1_5b", 3), "overrides are a int, not a list"),
        (lambda: simtrain.plot_timeline(RESULT, stages=3), "write stages=[3]"),
        (lambda: simtrain.plot_timeline(RESULT, window_s=3), "write window_s=(0.0, 0.5)"),
        (lambda: simtrain.resource_curves(RESULT, 3), "write factors=(0.5, 1.0, 2.0)"),
        (lambda: simtrain.query(3, "select 1"), "an object of type int is not a path"),
        (lambda: simtrain.sweep("interleave", 3), "an object of type int is not a path"),
        (lambda: simtrain.write_trace(RESULT, 3), "an object of type int is not a path"),
        (lambda: simtrain.plan(SCENARIO, "1B", ["h100_sxm"], [8], days="x"), "days is 'x'"),
    ],
)
def test_an_argument_of_a_wrong_type_is_an_error_of_simtrain(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


def test_wrong_values_of_any_argument_are_errors_of_simtrain() -> None:
    """A call raises an error of simtrain, or works, whatever the first arguments are."""
    values = [3.5, {}, None, "no such", object(), [], b"x", 7, SCENARIO]
    names = [name for name in simtrain.__all__ if name not in ("models", "__version__")]
    functions = [getattr(simtrain, name) for name in names]
    refused = 0
    for function in filter(inspect.isfunction, functions):
        parameters = inspect.signature(function).parameters.values()
        number = sum(each.default is each.empty for each in parameters)
        for value, first in itertools.product(values, range(number)):
            arguments = [*[SCENARIO] * first, *[value] * (number - first)]
            try:
                function(*arguments)
            except simtrain.SimtrainError:
                refused += 1
    assert refused > 100


def test_a_search_takes_one_number_of_gpus() -> None:
    one, several = (simtrain.search(SCENARIO, gpus, top=1) for gpus in (8, [8]))
    assert one.ranked[0].run == several.ranked[0].run


def test_results_of_one_process_share_durations() -> None:
    first, second = simtrain.simulate(SCENARIO), simtrain.simulate(SCENARIO)
    assert first.seconds.machine is second.seconds.machine
    assert (
        first.to_dict() == second.to_dict() == simtrain.simulate(SCENARIO, RESULT.profile).to_dict()
    )


def test_documents_import_the_package_alone() -> None:
    """Only pages on writing a part of simtrain import the room of that part."""
    for page in [ROOT / "README.md", *pathlib.Path(ROOT / "docs").rglob("*.md")]:
        lines = page.read_text(encoding="utf-8").splitlines()
        rooms = [line for line in lines if re.match(r"(from|import) simtrain\.", line)]
        assert not rooms or page.stem.startswith(("add_", "write_a_layer")), (page, rooms)
