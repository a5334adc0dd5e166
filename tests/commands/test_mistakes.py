"""Common mistakes on the command line, and the error that each prints."""

import json
import os
import pathlib
import re
import shlex

import pytest

from simtrain.base.resources import beside, find_profile
from simtrain.commands.output import Output, show_view
from simtrain.commands.printing import emit
from simtrain.scenario import load_scenario
from simtrain.studies.sweep.grid import load_sweep
from simtrain.studies.sweep.run import SweepRows
from simtrain.views.sweep import rows_view
from tests.helpers.command_line import call, refused, spawn
from tests.helpers.scenario_texts import MINIMAL

pytestmark = pytest.mark.slow

LONG = "a" * 300


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"run {LONG}", "E101"),
        (f"run dp530b --set cluster={LONG}", "E101"),
        (f"sweep {LONG} -o x", "E101"),
        (f"show {LONG}", "E101"),
        (f"run {LONG}.yaml", "E102"),
        (f"sweep {LONG} --query 'select 1'", "E102"),
    ],
)
def test_a_name_of_300_characters_is_an_error(command: str, code: str) -> None:
    errors = refused(*shlex.split(command))
    assert f"{code} " in errors


@pytest.mark.parametrize(
    "command",
    [
        "run gpt2_1_5b",
        "cost gpt2_1_5b --tokens 1B",
        "search gpt2_1_5b --gpus 80000",
        "compare gpt2_1_5b --change batch.micro=1 --change cluster=h100_sxm",
        "run gpt2_1_5b --show sources",
    ],
)
def test_every_command_prints_the_path_of_a_users_profile_as_written(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("own.yaml").write_text(find_profile("h100_sxm").read_text("utf-8"), "utf-8")
    outcome = call(*command.split(), "--set", "cluster=own.yaml")
    assert "own.yaml" in outcome.stdout + outcome.stderr


@pytest.mark.parametrize("options", [("--gpus", "1,2"), ("--gpus", "1", "--gpus", "2")])
def test_numbers_of_gpus_can_be_separated_by_commas(options: tuple[str, ...]) -> None:
    words = ("search", "gpt2_1_5b", *options, "--set", "batch.global=2", "--tokens", "1B")
    outcome = call(*words, "--format=json")
    assert outcome.exit_code == 0
    assert {row["num_gpus"] for row in json.loads(outcome.stdout)["rows"]} == {1, 2}


def test_a_closed_stderr_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        emit("an error", stream)
        emit("more of it", stream)


# ------------------------------------------------------------------------------ paths in files


@pytest.fixture
def other_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Write files that refer to each other to a folder outside the working directory."""
    files, work = tmp_path / "files", tmp_path / "work"
    files.mkdir()
    work.mkdir()
    profile = find_profile("a100_sxm4_80gb").read_text("utf-8")
    (files / "my.yaml").write_text(profile, "utf-8")
    (files / "scenario.yaml").write_text(MINIMAL + "cluster: my.yaml\n", "utf-8")
    monkeypatch.chdir(work)
    return files


def test_the_path_of_a_cluster_is_relative_to_the_scenario(other_folder: pathlib.Path) -> None:
    expected = str(pathlib.Path("..", "files", "my.yaml"))
    assert load_scenario("../files/scenario.yaml").cluster == expected
    assert (
        call("run", "--show", "memory", "../files/scenario.yaml", "--format=json").exit_code == 3
    )  # the profile was found
    # An override is relative to the working directory, as any argument.
    overridden = load_scenario("../files/scenario.yaml", ["cluster=./my.yaml"])
    assert overridden.cluster == "./my.yaml"
    (other_folder / "my.yaml").unlink()
    place = re.escape(os.path.join("..", "files", "scenario.yaml"))
    assert re.match(place + r":\d+:10: E101", refused("run", "../files/scenario.yaml"))


@pytest.mark.parametrize(
    ("base", "axes"),
    [
        ("scenario.yaml", "{batch.micro: [1]}"),
        ("null", "{base: [scenario.yaml]}"),
        ("table5_22b_full", "{cluster: [my.yaml]}"),
        ("table5_22b_full", "{machine: {mine: {cluster: my.yaml}}}"),
    ],
)
def test_paths_in_a_sweep_are_relative_to_the_sweep(
    other_folder: pathlib.Path, base: str, axes: str
) -> None:
    (other_folder / "sweep.yaml").write_text(f"base: {base}\naxes: {axes}\n", "utf-8")
    plan = load_sweep("../files/sweep.yaml")
    assert str(pathlib.Path("..", "files", "my.yaml")) in plan.profiles


def test_the_cluster_of_an_inline_base_is_relative_to_the_sweep(other_folder: pathlib.Path) -> None:
    inside = "".join(f"  {line}\n" for line in (MINIMAL + "cluster: my.yaml").splitlines())
    text = f"axes: {{batch.micro: [1]}}\nbase:\n{inside}"
    (other_folder / "sweep.yaml").write_text(text, "utf-8")
    assert list(load_sweep("../files/sweep.yaml").profiles) == [
        os.path.join("..", "files", "my.yaml")
    ]


def test_names_and_absolute_paths_are_unchanged() -> None:
    assert beside("h100_sxm", "files/x.yaml") == "h100_sxm"
    assert beside("/a/my.yaml", "files/x.yaml") == "/a/my.yaml"
    assert beside("../my.yaml", "files/x.yaml") == "my.yaml"


@pytest.mark.parametrize(
    "command",
    [
        "run gpt2_1_5b",
        "cost gpt2_1_5b --tokens 1B",
        "run gpt2_1_5b --show sources",
        "search gpt2_1_5b --gpus 1 --set batch.micro=1 --top 1",
        "search gpt2_1_5b --gpus 1 --tokens 1B --set batch.micro=1",
    ],
)
def test_pages_print_a_name_as_it_is_written(command: str) -> None:
    name = "[red]a[/b] :smile:"
    outcome = call(*shlex.split(command), "--set", f'name="{name}"')
    assert outcome.exit_code == 0
    assert name in outcome.stdout


def test_no_name_controls_the_terminal_and_data_stays_data() -> None:
    name = r'name="\e[31mred"'
    page = call("run", "gpt2_1_5b", "--set", name).stdout
    assert "\N{REPLACEMENT CHARACTER}[31mred" in page and "\x1b" not in page
    data = call("run", "--show", "schedule", "gpt2_1_5b", "--set", name, "--format=csv").stdout
    assert data == call("run", "--show", "schedule", "gpt2_1_5b", "--format=csv").stdout


def test_cells_of_a_page_control_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_view(Output(), rows_view(SweepRows(("a\x1b[2J",), (("b\x1b]0;title\x9c",),))))
    control = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out.split()[::2] == [
        f"a{control}[2J",
        f"b{control}]0;title{control}",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        outcome = spawn("-m", "simtrain", "run", "gpt2_1_5b", stdout=full.fileno())
    assert outcome.exit_code == 2
    assert "E113 the output cannot be written" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_sweep_names_the_folder_of_its_results(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = call("sweep", "interleave", "--workers", "1")
    assert "Results are in interleave_results." in outcome.stdout
    assert [*pathlib.Path("interleave_results").iterdir()]
