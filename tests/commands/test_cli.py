"""The command line: output, errors and exit codes."""

import json
import math
import os
import pathlib
import shlex
from hashlib import sha256

import pytest

import simtrain
from simtrain.base.plain_data import SCHEMA_VERSION, sentence_json
from simtrain.base.resources import find_profile
from simtrain.guests.paper.entries import published
from simtrain.hardware.evidence import validated_on
from simtrain.iteration.report.remarks import remarks_on
from simtrain.scenario import load_scenario
from simtrain.scenario.resolved import settings_of
from simtrain.schedules import Schedule
from tests.helpers.command_line import ROOT, call, refused, spawn
from tests.helpers.scenario_texts import edited

PIPELINED = (
    "table5_22b_present",
    *("--set", "parallelism.pipeline=4"),
    *("--set", "parallelism.data=2"),
    *("--set", "batch.global=64"),
)
RUNS = [("table5_22b_present",), ("table5_22b_full",), PIPELINED]
PARTS = {
    "compute",
    "recompute",
    "launch",
    "tensor_communication",
    "pipeline_communication",
    "data_communication",
    "bubble",
    "optimizer",
}


def overrides_of(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(argument for argument in arguments[1:] if argument != "--set")


# ------------------------------------------------------------------------------------------- run


@pytest.mark.parametrize("arguments", RUNS)
def test_run_json_equals_the_result_of_simulate(arguments: tuple[str, ...]) -> None:
    outcome = call("run", *arguments, "--format=json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    result = simtrain.run(simtrain.load_scenario(arguments[0], overrides_of(arguments)))
    data = json.loads(outcome.stdout)
    for name in ("iteration_time_s", "mfu", "hfu", "tokens_per_s"):
        assert data[name] == getattr(result, name)
    assert data["num_gpus"] == result.scenario.num_gpus
    profile = find_profile(result.scenario.cluster)
    assert data.pop("made_with") == {
        "simtrain": simtrain.__version__,
        "profile": result.scenario.cluster,
        "profile_sha256": sha256(profile.read_bytes()).hexdigest(),
    }
    assert data.pop("schema_version") == SCHEMA_VERSION
    assert data.pop("remarks") == [sentence_json(one) for one in remarks_on(result)]
    assert data.pop("settings") == json.loads(json.dumps(settings_of(result.scenario)))
    assert data.pop("evidence") == result.evidence.to_dict()
    errors = validated_on(result.scenario.cluster)
    assert errors and data.pop("validated_on") == errors.model_dump(exclude={"version"})
    assert data == result.to_dict()


@pytest.mark.parametrize("arguments", RUNS)
def test_the_breakdown_adds_up_to_the_iteration(arguments: tuple[str, ...]) -> None:
    data = json.loads(call("run", *arguments, "--format=json").stdout)
    assert len(data["stages_s"]) == data["num_simulated_ranks"]
    for parts in (data["breakdown_s"], *data["stages_s"]):
        assert parts.keys() == PARTS
        assert min(parts.values()) >= 0
        assert math.fsum(parts.values()) == pytest.approx(data["iteration_time_s"], rel=1e-12)


@pytest.mark.parametrize("arguments", RUNS)
def test_mfu_and_hfu_follow_the_papers_formulas(arguments: tuple[str, ...]) -> None:
    """Model FLOPs are 72BLsh²(1 + s/6h + v/12hL). Recompute adds s/18h or the layers' forward."""
    data = json.loads(call("run", *arguments, "--format=json").stdout)
    scenario = load_scenario(arguments[0], overrides_of(arguments))
    model = scenario.model
    s, h, layers, v = model.seq_length, model.hidden_size, model.num_layers, model.vocab_size
    unit = 72 * scenario.batch.global_ * layers * s * h**2
    bracket = 1 + s / (6 * h) + v / (12 * h * layers)
    recomputed = {"selective+sequence": s / (18 * h), "full": (1 + s / (6 * h)) / 3}
    peak = data["num_gpus"] * 312e12 * data["iteration_time_s"]
    assert data["mfu"] == pytest.approx(unit * bracket / peak)
    assert data["hfu"] == pytest.approx(unit * (bracket + recomputed[data["strategy"]]) / peak)
    tokens = scenario.batch.global_ * s
    assert data["tokens_per_s"] == pytest.approx(tokens / data["iteration_time_s"])


def test_the_page_and_the_json_show_the_same_numbers() -> None:
    data = json.loads(call("run", *PIPELINED, "--format=json").stdout)
    outcome = call("run", *PIPELINED)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    for shown in (
        f"{data['iteration_time_s']:.4g} s",
        f"{data['tokens_per_s']:,.0f}",
        f"{data['mfu']:.1%} / {data['hfu']:.1%}",
        "Simulated 4 of 64 ranks",
    ):
        assert shown in " ".join(outcome.stdout.split())


def test_brackets_in_a_name_are_not_markup(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(edited("model:", 'name: "[/x] [red]:smile:"\nmodel:'), encoding="utf-8")
    outcome = call("run", str(path), "--allow-oom")
    assert outcome.exit_code == 0
    assert "[/x] [red]:smile: (baseline, 1f1b)" in outcome.stdout


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--format=json"]])
def test_output_is_identical_in_every_process(options: list[str]) -> None:
    here = call("run", *PIPELINED, *options)
    assert call("run", *PIPELINED, *options) == here
    there = spawn("-m", "simtrain", "run", *PIPELINED, *options, PYTHONHASHSEED="7")
    assert there == here


# ------------------------------------------------------------------------- schedule and scenarios


@pytest.mark.parametrize(
    "arguments",
    [
        PIPELINED,
        (*PIPELINED, "--set", "schedule=gpipe"),
        (*PIPELINED, "--set", "parallelism.interleave=3"),
    ],
)
def test_csv_of_a_schedule_can_be_read_back(arguments: tuple[str, ...]) -> None:
    outcome = call("run", "--show", "schedule", *arguments, "--format=csv")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    scenario = load_scenario(arguments[0], overrides_of(arguments))
    expected = scenario.order.actions
    assert Schedule.from_csv(outcome.stdout, scenario.schedule) == expected
    assert outcome.stdout.startswith("0F0,0F1,")


@pytest.mark.slow
def test_scenarios_lists_every_shipped_file() -> None:
    outcome = call("show", "scenarios")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    starts = [line for line in outcome.stdout.splitlines() if not line.startswith(" ")]
    listed = dict(line.split(maxsplit=1) for line in starts)
    shipped = {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    assert list(listed) == sorted(shipped)
    assert len(shipped) == 8 + 1 + 5 + 1 + 13 + 6 + 3 + 5
    for name in listed:
        assert call("run", "--show", "schedule", name).exit_code == 0


# ------------------------------------------------------------------------------------- reproduce


def test_a_missed_threshold_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(published("table4"), "limits", [0.02, 1e-5])
    page, data = call("reproduce", "table4"), call("reproduce", "table4", "--format=json")
    assert (page.exit_code, data.exit_code) == (4, 4)
    closing = page.stdout.splitlines()[-1]
    assert closing.startswith("FAILED: mean |error| 0.") and closing.endswith("(at most 0.0%)")
    assert json.loads(data.stdout)["ok"] is False
    assert len(json.loads(data.stdout)["misses"]) == 1
    assert json.loads(data.stdout)["made_with"]["profile"] == "a100_sxm4_80gb"


def test_the_simulated_time_does_not_depend_on_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed number of the paper changes the error, not the simulation."""
    before = json.loads(call("reproduce", "table4", "--format=json").stdout)
    monkeypatch.setitem(published("table4")["rows"], "baseline", (8.7, 11.9))
    outcome = call("reproduce", "table4", "--format=json")
    after = json.loads(outcome.stdout)
    assert outcome.exit_code == 4
    simulated = [[row["simulated_s"] for row in data["rows"]] for data in (before, after)]
    assert simulated[0] == simulated[1]
    assert after["rows"][0]["error"] == pytest.approx(simulated[0][0] / 8.7e-3 - 1)


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("command", ["run", "run --show schedule"])
def test_an_error_in_a_file_shows_its_position(command: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(edited("num_layers: 48", "num_layers: -48"), encoding="utf-8")
    errors = refused(*command.split(), str(path))
    place, source, caret, *_ = errors.splitlines()
    assert place.startswith(f"{path}:2:15: E2")
    assert source == " 2 |   num_layers: -48"
    assert caret == "   |               ^"


# -------------------------------------------------------------------------------------- the shell


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "run table5_1t_present --show schedule",
        "run table4_full --show schedule",
        "run table4_full",
        "show scenarios",
    ],
)
def test_a_closed_pipe_is_not_an_error(command: str) -> None:
    """As in `simtrain run ... --show schedule | head`: no traceback, and exit code 0."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        # Buffered, as in a shell: short output is written only when the process ends.
        outcome = spawn("-m", "simtrain", *shlex.split(command), stdout=writer, PYTHONUNBUFFERED="")
    finally:
        os.close(writer)
    assert (outcome.exit_code, outcome.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "heading"),
    [("run table5_22b_present", "MFU / HFU"), ("reproduce table4", "Table 4")],
)
def test_output_is_ascii_on_an_ascii_terminal(command: str, heading: str) -> None:
    outcome = spawn("-m", "simtrain", *shlex.split(command), PYTHONIOENCODING="ascii")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.isascii() and heading in outcome.stdout


def test_a_changed_scenario_is_written_as_a_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "run", "gpt2_1_5b", "--gpus", "2", "--set", "batch.global=64"
    written = json.loads(call(*words, "-o", "mine.yaml", "--format", "json").stdout)
    again = json.loads(call("run", "mine.yaml", "--format", "json").stdout)
    assert again["iteration_time_s"] == written["iteration_time_s"]
    assert "E113 the file exists" in refused(*words, "-o", "mine.yaml")
