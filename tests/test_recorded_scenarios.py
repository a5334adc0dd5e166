"""Laws of all scenarios, and every study, on random recordings of torch programs.

Recordings are files: none of this needs torch.
"""

from pathlib import Path

import pytest
import yaml

from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.views.operators import modules_table
from tests.helpers.command_line import call, refused
from tests.helpers.random_recordings import MODULES, recorded_scenarios
from tests.helpers.recorded_programs import WEIGHT, linear_layers, run, scenario_of

NUMBER, SEED = 6, 5


@pytest.fixture(scope="module", params=range(NUMBER))
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    folder = tmp_path_factory.mktemp("recordings")
    (values,) = recorded_scenarios(1, SEED * NUMBER + request.param, folder)
    return Scenario.model_validate(values)


@pytest.fixture(scope="module")
def result(scenario: Scenario) -> Result:
    return simulate(scenario)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_has_the_flops_of_the_products_of_all_scores(
    is_causal: bool, tmp_path: Path
) -> None:
    """As `torch.utils.flop_counter` counts: two products forward, four backward and QK^T again."""
    q, k, z = "bf16[2,4,96,64]", "bf16[2,2,128,64]", "f32[2,4,96]"
    options = {"is_causal": is_causal}
    forward = {"op": "simtrain.attention", "reads": [q, k, k], "writes": [q, z]}
    backward = {"op": "simtrain.attention_backward", "reads": [q, q, k, k, q, z]}
    backward["writes"] = [q, k, k]
    program = linear_layers(
        forward=[run(forward | {"options": options})],
        backward=[run(backward | {"options": options})],
        optimizer=[],
    )
    result = simulate(scenario_of(program, tmp_path))
    product = 2 * 8 * 96 * 128 * 64
    assert result.model_flops == (2 + 4) * product
    skipped = 8 * 96 * 96 * 64 if is_causal else 0  # half of the square of each product
    assert result.hardware_flops == (2 + 5) * (product - skipped)
    assert (result.hfu < result.mfu) == is_causal


def test_every_microbatch_rises_to_the_peak_and_the_first_makes_the_gradients(
    tmp_path: Path,
) -> None:
    program = linear_layers(microbatches=3)
    states = program.states.model_copy(update={"gradients_bytes": 10 * WEIGHT, "other_bytes": 99})
    for each, peaks in ((program, 3), (program.model_copy(update={"states": states}), 2)):
        result = simulate(scenario_of(each, tmp_path))
        curve, (stage,) = result.memory_curve(0), result.memory.stages
        assert max(curve.held_bytes) == stage.peak_bytes
        assert curve.held_bytes.count(max(curve.held_bytes)) == peaks
    assert curve.held_bytes[0] < curve.held_bytes[-1]


def test_modules_add_up_to_the_iteration(result: Result) -> None:
    operators = result.operators()
    table = modules_table(operators)
    total_s = sum(row.cells[-2] for row in table.rows)
    waiting_s = operators.breakdown.launch_s + operators.breakdown.bubble_s
    assert total_s + waiting_s == pytest.approx(result.iteration_time_s)
    assert {row.cells[0] for row in table.rows} <= {*MODULES, "outside of modules"}


STUDIES = [
    "run --allow-oom --format json",
    "run --allow-oom --show ops",
    "run --allow-oom --draws 3",
    "run --allow-oom --set hardware.scale.memory_bandwidth=2",
    "run --allow-oom -o {out}.json",
    "run --allow-oom --show memory",
    "run --allow-oom -o {out}.html",
    "run --show sources",
    "compare --schedules",
    "compare --change cluster=b200_sxm --allow-oom",
    "compare",
    "cost --days 3 --allow-oom",
    "sweep -o {out}",
]
REFUSED = {"search --gpus 8": "E941", "export": "E952"}


def words_of(command: str, file: Path) -> list[str]:
    """Put the scenario after the words of a command, or a sweep of it."""
    if command.startswith("sweep"):
        axes = {"cluster": ["h100_sxm", "b200_sxm"], "software.host_issue": ["0 s", "3 us"]}
        sweep = file.with_name("sweep.yaml")
        sweep.write_text(yaml.safe_dump({"base": str(file), "axes": axes}), "utf-8")
        file = sweep
    words = command.format(out=file.with_name("out")).split()
    return [words[0], str(file), *words[1:]]


def write_scenario(seed: int, folder: Path) -> Path:
    (values,) = recorded_scenarios(1, seed, folder)
    file = folder / "drawn.yaml"
    file.write_text(yaml.safe_dump(values), "utf-8")
    return file


@pytest.mark.parametrize("command", STUDIES)
def test_every_study_takes_recordings(command: str, tmp_path: Path) -> None:
    """JSON and pages are written in full."""
    done = call(*words_of(command, write_scenario(STUDIES.index(command), tmp_path)))
    assert done.exit_code == 0, done.stderr
    assert done.stdout or any(tmp_path.glob("out*"))


@pytest.mark.parametrize("command", REFUSED)
def test_what_needs_a_model_is_refused(command: str, tmp_path: Path) -> None:
    assert REFUSED[command] in refused(*words_of(command, write_scenario(0, tmp_path)))
