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
from simtrain.studies.comparison import sensitivity
from simtrain.studies.on_machine import memory_on, plan_on, result_on
from tests.helpers.toys import run, small
from tests.studies.test_answers import answers

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


def test_every_value_prints_on_a_short_line(rows: Any, runs: pathlib.Path) -> None:
    values = [
        *(RESULT, RESULT.breakdown, RESULT.timeline, RESULT.memory, RESULT.memory_curve(0)),
        *(RESULT.operators(), RESULT.plan, RESULT.profile, SCENARIO, rows, RESULT.draw(3)),
        *(RESULT.interval, RESULT.fit, *answers().values(), planned()),
        simtrain.validate(runs, "a100_sxm4_80gb"),
    ]
    for value in values:
        assert len(repr(value)) < 200 and "\n" not in repr(value), type(value)
        assert not re.search(r"\d\.\d{9}|\d{9}", repr(value)), repr(value)


def planned(**arguments: Any) -> Any:
    return simtrain.search(SCENARIO, **{"gpus": 8, "tokens": "1B"} | arguments)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: simtrain.run("gpt2_1_5b"), '"gpt2_1_5b" is a name, not a Scenario'),
        (lambda: simtrain.run(SCENARIO, "h100_sxm"), 'profile=load_profile("h100_sxm")'),
        (lambda: simtrain.compare(), "there is nothing to compare"),
        (lambda: simtrain.compare([RESULT, RESULT]), "write compare(scenario, other)"),
        (lambda: simtrain.cost("gpt2_1_5b", "1B"), 'simulate(load_scenario("gpt2_1_5b"))'),
        (lambda: simtrain.cost(RESULT, "many"), '"many" is not a quantity of tokens'),
        (lambda: simtrain.cost(RESULT, "1B", goodput="all"), "goodput is 'all'"),
        (lambda: planned(clusters="h100_sxm"), "write clusters=['h100_sxm']"),
        (lambda: planned(days="x"), "days is 'x'"),
        (lambda: simtrain.sweep({"base": "gpt2_1_5b"}), "the sweep:1:1: E202 axes is missing"),
        (lambda: simtrain.sweep({"axes": range(3)}), "of type range is not a plain value"),
        (lambda: simtrain.sweep({(1, 2): 3}), "the sweep is no plain data: keys must be str"),
        (lambda: simtrain.compare(SCENARIO, top=0), "top is 0"),
        (lambda: simtrain.validate("runs.csv", 3), "cluster is 3, not a text"),
        (lambda: simtrain.validate("x.csv", "h100_sxm", overrides=3), "not a list of texts"),
        (lambda: simtrain.import_("x.sh", gpus="8"), "gpus is '8'"),
        (lambda: simtrain.import_("x.sh", env=["A=1"]), 'write env={"NNODES": "4"}'),
        (lambda: simtrain.import_("x.sh", overrides="tp=2"), "not a list of texts"),
        (lambda: simtrain.import_("gpt2_1_5b", env={}, gpus=3), "write batch.global: 96"),
        (lambda: simtrain.report("gpt2_1_5b", "x.html"), "is a name, not a Scenario or Result"),
        (lambda: simtrain.report([], "x.html"), "there is nothing to report on"),
        (lambda: simtrain.write_trace(SCENARIO, "x.json"), "is not a Result"),
        (lambda: SCENARIO.replace(4), 'write scenario.replace({"parallelism.tensor": 4})'),
        (lambda: simtrain.load_scenario("gpt2_1_5b", 3), "overrides are a int, not a list"),
        (lambda: RESULT.timeline.plot(stages=3), "write stages=[3]"),
        (lambda: RESULT.timeline.plot(window_s=3), "write window_s=(0.0, 0.5)"),
    ],
)
def test_an_argument_of_a_wrong_type_is_an_error_of_simtrain(
    ask: Callable[[], Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        ask()
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
    of_scenario, of_result = map(simtrain.compare, (SCENARIO, RESULT))
    assert of_scenario.to_json() == of_result.to_json()


def test_a_result_keeps_its_profile_layers_and_recompute() -> None:
    faster = with_more(RESULT.profile, [RESOURCES["tensor_cores"]], 2)
    result = simtrain.run(SCENARIO.replace({"recompute": "auto"}), faster)
    now_s = sensitivity(result).iteration_time_s
    assert now_s == result.iteration_time_s < RESULT.iteration_time_s
    few = [*RESULT.plan.model.blocks][1:-1]
    own = simtrain.run(SCENARIO, layers=[few[0]] * SCENARIO.model.num_layers)
    assert sensitivity(own).iteration_time_s == own.iteration_time_s


def test_a_sweep_takes_what_its_file_contains(rows: Any) -> None:
    base = simtrain.load_scenario("gpt2_1_5b", ["batch.micro=1"])
    axes = {"model.seq_length": [512, 1024]}
    assert simtrain.sweep({"base": base, "axes": axes}).rows == rows.rows
    assert simtrain.sweep({"base": "gpt2_1_5b", "axes": axes}, None, ["batch.micro=1"]) == rows


def test_a_scenario_of_another_tool_says_what_was_assumed(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(LAUNCH, encoding="utf-8")
    changes = ["batch.micro=2", "cluster=h100_sxm"]
    scenario = simtrain.import_(file, gpus=8, overrides=changes, env={"LAYERS": "4"})
    assert (scenario.num_gpus, scenario.batch.micro, scenario.model.num_layers) == (8, 2, 4)
    assert scenario.name == "train" and simtrain.run(scenario).iteration_time_s > 0
    assert any(note.startswith("--qk-l2-norm") for note in scenario.notes)
    assert scenario.replace({"batch.micro": 1}).notes == scenario.notes
    assert simtrain.import_("gpt2_1_5b") == simtrain.load_scenario("gpt2_1_5b")


def test_results_of_one_process_share_durations() -> None:
    first, second = simtrain.run(SCENARIO), simtrain.run(SCENARIO)
    assert first.seconds.machine is second.seconds.machine
    assert first.to_dict() == second.to_dict() == simtrain.run(SCENARIO, RESULT.profile).to_dict()


def test_a_simulation_uses_the_machine_that_it_is_given() -> None:
    machine = Machine.of(RESULT.profile)
    result = result_on(*plan_on(SCENARIO, machine))
    assert result.seconds.machine is machine and result.to_dict() == RESULT.to_dict()
    assert memory_on(SCENARIO, machine).peaks_bytes == RESULT.memory.peaks_bytes
