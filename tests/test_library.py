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
from simtrain.hardware.upgrades import RESOURCES, with_more
from simtrain.iteration.programs.seconds import Machine
from simtrain.studies.on_machine import memory_on, simulate_on
from tests.helpers.command_line import ROOT
from tests.helpers.toys import run, small

RESULT = run(small())
SCENARIO = RESULT.scenario
LAUNCH = """torchrun pretrain_gpt.py --num-layers $LAYERS --hidden-size 1024 --num-attention-heads 8
--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16
--vocab-size 32000 --bf16 --tensor-model-parallel-size 2 --qk-l2-norm
""".replace("\n--", " --")
RUN_TABLE = """layers,hidden,heads,seq,global_batch,tp,gpus,micro_batch,iteration_s
4,1024,16,1024,16,2,8,1,0.5
4,1024,15,1024,16,2,8,1,0.5
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rows of a sweep with one process."""
    folder = tmp_path_factory.mktemp("sweep")
    file = folder / "lengths.yaml"
    file.write_text("base: gpt2_1_5b\naxes: {model.seq_length: [512, 1024]}\n", encoding="utf-8")
    return simtrain.sweep(file, folder / "results", ["batch.micro=1"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A table of two measured runs, one of which cannot be simulated."""
    file = tmp_path_factory.mktemp("runs") / "runs.csv"
    file.write_text(RUN_TABLE, encoding="utf-8")
    return file


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


def test_every_value_prints_on_a_short_line(rows: Any, runs: pathlib.Path) -> None:
    plan = simtrain.plan(SCENARIO, "1B", [SCENARIO.cluster], [4])
    search = simtrain.search(SCENARIO, [4], top=1)
    advice = simtrain.advise(SCENARIO)
    validation = simtrain.validate(runs, "a100_sxm4_80gb")
    values = [
        *(RESULT, RESULT.breakdown, RESULT.timeline, RESULT.memory, RESULT.memory_curve(0)),
        *(RESULT.operators(), RESULT.operators().rows[0], RESULT.plan, RESULT.profile),
        *(RESULT.seconds, RESULT.iteration, SCENARIO, simtrain.cost(RESULT, "1B"), plan),
        *(plan.rows[0], search, search.ranked[0], search.ranked[0].run, rows),
        *(simtrain.sensitivity(SCENARIO), *simtrain.compare(RESULT, RESULT)),
        *(RESULT.interval, RESULT.fit, RESULT.fit.interval, RESULT.memory.fullest, validation),
        *(RESULT.memory.fullest.states, advice, *advice.advised),
        *(simtrain.draw(SCENARIO, draws=3), simtrain.goodput(RESULT, days=1, draws=2)),
    ]
    for value in values:
        assert len(repr(value)) < 200 and "\n" not in repr(value), type(value)
        assert not re.search(r"\d\.\d{9}|\d{9}", repr(value)), repr(value)


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
        (lambda: simtrain.sweep(3), "an object of type int is not a path"),
        (lambda: simtrain.sweep({"base": "gpt2_1_5b"}), "the sweep:1:1: E202 axes is missing"),
        (lambda: simtrain.sweep({"axes": range(3)}), "of type range is not a plain value"),
        (lambda: simtrain.sweep({(1, 2): 3}), "the sweep is no plain data: keys must be str"),
        (lambda: simtrain.advise("gpt2_1_5b"), 'load_scenario("gpt2_1_5b")'),
        (lambda: simtrain.advise(SCENARIO, top=0), "top is 0"),
        (lambda: simtrain.sensitivity("gpt2_1_5b"), 'load_scenario("gpt2_1_5b")'),
        (lambda: simtrain.validate("runs.csv", 3), "cluster is 3, not a text"),
        (lambda: simtrain.validate(3, "a100_sxm4_80gb"), "of type int is not a path"),
        (lambda: simtrain.validate("x.csv", "h100_sxm", overrides=3), "not a list of texts"),
        (lambda: simtrain.import_scenario(3), "an object of type int is not a path"),
        (lambda: simtrain.import_scenario("x.sh", gpus="8"), "gpus is '8'"),
        (lambda: simtrain.import_scenario("x.sh", env=["A=1"]), 'write env={"NNODES": "4"}'),
        (lambda: simtrain.import_scenario("x.sh", overrides="tp=2"), "not a list of texts"),
        (lambda: simtrain.import_scenario("gpt2_1_5b", env={}, gpus=3), "write --gpus "),
        (lambda: simtrain.report("gpt2_1_5b", "x.html"), "is a name, not a Scenario or Result"),
        (lambda: simtrain.report([], "x.html"), "there is nothing to report on"),
        (lambda: simtrain.report(SCENARIO, 3), "an object of type int is not a path"),
        (lambda: simtrain.sensitivity(SCENARIO, factor="2"), "factor is '2'"),
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


def test_studies_take_a_scenario_or_its_result() -> None:
    assert simtrain.cost(SCENARIO, "1B") == simtrain.cost(RESULT, "1B")
    assert simtrain.advise(SCENARIO) == simtrain.advise(RESULT)
    assert simtrain.sensitivity(SCENARIO) == simtrain.sensitivity(RESULT)


def test_a_result_keeps_its_profile_layers_and_recompute() -> None:
    faster = with_more(RESULT.profile, [RESOURCES["tensor_cores"]], 2)
    result = simtrain.simulate(SCENARIO.replace({"recompute": "auto"}), faster)
    now_s = simtrain.sensitivity(result).iteration_time_s
    assert now_s == result.iteration_time_s < RESULT.iteration_time_s
    assert simtrain.sensitivity(result, RESULT.profile).iteration_time_s == RESULT.iteration_time_s
    few = [*RESULT.plan.model.blocks][1:-1]
    own = simtrain.simulate(SCENARIO, layers=[few[0]] * SCENARIO.model.num_layers)
    assert simtrain.sensitivity(own).iteration_time_s == own.iteration_time_s


def test_a_sweep_takes_what_its_file_contains(rows: Any) -> None:
    base = simtrain.load_scenario("gpt2_1_5b", ["batch.micro=1"])
    axes = {"model.seq_length": [512, 1024]}
    assert simtrain.sweep({"base": base, "axes": axes}).rows == rows.rows
    assert simtrain.sweep({"base": "gpt2_1_5b", "axes": axes}, None, ["batch.micro=1"]) == rows


def test_a_scenario_of_another_tool_says_what_was_assumed(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(LAUNCH, encoding="utf-8")
    scenario = simtrain.import_scenario(
        file, gpus=8, overrides=["batch.micro=2"], env={"LAYERS": "4"}
    )
    assert (scenario.num_gpus, scenario.batch.micro, scenario.model.num_layers) == (8, 2, 4)
    assert scenario.name == "train" and simtrain.simulate(scenario).iteration_time_s > 0
    assumed, *noted = scenario.notes
    assert assumed.startswith("Simulated on A100")
    assert any(note.startswith("--qk-l2-norm") for note in noted)
    assert scenario.replace({"batch.micro": 1}).notes == scenario.notes
    assert simtrain.import_scenario("gpt2_1_5b") == simtrain.load_scenario("gpt2_1_5b")


def test_a_validation_compares_each_run(runs: pathlib.Path) -> None:
    validation = simtrain.validate([runs], "a100_sxm4_80gb", "megatron_2022")
    assert (validation.num_rows, validation.num_simulated) == (2, 1)
    assert validation == simtrain.validate(str(runs), "a100_sxm4_80gb", "megatron_2022")


def test_a_report_is_written_for_scenarios_and_results(tmp_path: pathlib.Path) -> None:
    changed = SCENARIO.replace({"recompute": "full"})
    texts = []
    for name, subjects in {"a": SCENARIO, "b": [RESULT], "c": [RESULT, changed]}.items():
        file = simtrain.report(subjects, tmp_path / f"{name}.html", sensitivity=name == "c")
        texts.append(file.read_text(encoding="utf-8"))
    assert texts[0] == texts[1] != texts[2]
    assert "--set recompute.strategy=full" in texts[2]


def test_results_of_one_process_share_durations() -> None:
    first, second = simtrain.simulate(SCENARIO), simtrain.simulate(SCENARIO)
    assert first.seconds.machine is second.seconds.machine
    assert (
        first.to_dict() == second.to_dict() == simtrain.simulate(SCENARIO, RESULT.profile).to_dict()
    )


def test_a_simulation_uses_the_machine_that_it_is_given() -> None:
    machine = Machine.of(RESULT.profile)
    assert simulate_on(SCENARIO, machine).seconds.machine is machine
    assert simulate_on(SCENARIO, machine).to_dict() == RESULT.to_dict()
    assert memory_on(SCENARIO, machine).peaks_bytes == RESULT.memory.peaks_bytes


def test_documents_import_the_package_alone() -> None:
    """Only the page on writing parts of simtrain imports the room of that part."""
    for page in [ROOT / "README.md", *pathlib.Path(ROOT / "docs").rglob("*.md")]:
        lines = page.read_text(encoding="utf-8").splitlines()
        rooms = [line for line in lines if re.match(r"(from|import) simtrain\.", line)]
        assert not rooms or page.stem == "extend", (page, rooms)
