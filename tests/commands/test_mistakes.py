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
    ("command", "message"),
    [
        ("run dp530b --set tensor=4", "did you mean parallelism.tensor?"),
        ("run dp530b --set micro=4", "did you mean batch.micro?"),
        ("run dp530b --set pipeline=4", "did you mean parallelism.pipeline or overlap.pipeline?"),
        ("run dp530b --set model.tensor=4", "did you mean parallelism.tensor?"),
        ("run dp530b --set parallelism.tensorr=4", "did you mean parallelism.tensor?"),
        ("run dp530b --set 'hardware.running_costs.price=$2/h'", 'write "2 USD/h"'),
        ("run dp530b --set micro_batch_size=4", "write batch.micro. The keys there"),
        ("run dp530b --set parallelism.context_parallel=4", "write parallelism.context. The keys"),
        ("run dp530b --set precision.fp8=true", "write precision.compute: bf16, fp16 or fp8."),
        ("run dp530b --set schedule=bitpipe", "fix: this schedule is not built in; write the"),
        ("run dp530b --set schedule=Interleaved1F1B", "fix: write interleaved"),
        ("run dp530b --set schedule=1F1B", "fix: write 1f1b"),
        ("run dp530b --set hardware.nvlink=3", "sections here: cluster, gpu, memory, gemm"),
        ("run dp530b --set cluster=min.yaml", "E101 there is no file min.yaml fix: did you mean"),
        ("run gpt2_1_5b -o no/x.html", "fix: create the folder no, or choose another one"),
        ("run dp530b --set recompute=false", "fix: write none"),
        ("run dp530b --set precision.compute=mxfp8", "write compute: fp8 and fp8_recipe: mxfp8"),
        ("run dp530b --set model.normalization=RMSNorm", "did you mean rms_norm?"),
        (
            "run dp530b --set precision.compute=fp32 --set precision.gradients=bf16",
            "gradients: fp32",
        ),
        ("run tabel5_22b_full", "did you mean table5_22b_full?"),
        ("run dp530b --set x", "--set x: E112 "),
        ("run dp530b --set parallelism.tensor=many", "E203 parallelism.tensor"),
        ("run dp530b --set parallelism.tensor=7", "=7: E301 parallelism.tensor is 7, "),
        ("run dp530b --set hardware.intra_node.bandwith=3", "did you mean bandwidth?"),
        ("run nin.yaml", "fix: did you mean mine.yaml?"),
        ("run nothing/x.yaml", "fix: the folder nothing cannot be read either"),
        ("run dp530b --set cluster=H100", "did you mean h100_sxm?"),
        ("run dp530b --set cluster=h100_sxn", "did you mean h100_sxm?"),
        ("run dp530b --set cluster=gb400", "fix: did you mean gb300? Known"),
        ("run dp530b --set model.num_layers=10001", "E204 model.num_layers is 10001"),
        ("run sweep.yaml", "sweep.yaml:1:1: E116 "),
        ("run sweep.yaml", "fix: simtrain sweep sweep.yaml -o results"),
        ("sweep mine.yaml -o x", "mine.yaml:1:1: E116 "),
        ("sweep mine.yaml -o x", "base: mine.yaml"),
        ("search gpt2_1_5b --gpus 8,two", '--gpus: E845 "8,two"'),
        ("search gpt2_1_5b --gpus 0", "--gpus: E845 "),
        ("run gpt2_1_5b -o x.png --stages 1", "stages: E118 "),
        ("run gpt2_1_5b -o x.png --window 8s:9s", "window: E118 "),
    ],
)
def test_an_error_suggests_the_intended_command(
    command: str, message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("mine.yaml").write_text(MINIMAL, "utf-8")
    pathlib.Path("sweep.yaml").write_text("axes: {batch.micro: [1]}\nbase: dp530b\n", "utf-8")
    errors = refused(*shlex.split(command))
    assert message in " ".join(errors.split())


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("run ''", "run ARGUMENT"),
        ("sweep '' --query 'select 1'", "sweep ARGUMENT"),
        ("search gpt2_1_5b --gpus 8 -o ''", "search -o"),
        ("compare gpt2_1_5b -o ''", "compare -o"),
        ("run gpt2_1_5b -o ''", "run -o"),
        ("import config.json -o ''", "import -o"),
        ("calibrate fit ''", "calibrate fit ARGUMENT"),
    ],
)
def test_an_empty_argument_is_refused(
    command: str, name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    errors = refused(*shlex.split(command))
    assert errors.startswith(f"simtrain {name}: E904 is empty; write a value")
    assert not list(tmp_path.iterdir())


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


def test_less_than_an_iteration_of_tokens_gets_a_note() -> None:
    few, many = (call("cost", "gpt2_1_5b", "--tokens", tokens).stdout for tokens in ("300", "300B"))
    assert "300 tokens are at most one iteration" in few
    assert "at most one iteration" not in many


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
    ("command", "option"),
    [
        ("run gpt2_1_5b -o x.CSV --window 0s:1s", "--window"),
        ("show E310 --format json", "--format"),
        ("run gpt2_1_5b --show schedule -o x.html", "-o"),
        ("run gpt2_1_5b --show memory --draws 5", "--draws"),
        ("run gpt2_1_5b --draws 5 -o x.html", "--draws"),
        ("run gpt2_1_5b --stages 0", "--stages"),
        ("run gpt2_1_5b --window 0s:1s", "--window"),
        ("compare gpt2_1_5b --schedules --change recompute=full", "--change"),
        ("sweep interleave -o x --value mfu", "--value"),
        ("sweep x --query 'select 1' -o x.html", "-o"),
        ("show -o x", "-o"),
        ("show scenarios -o x", "-o"),
    ],
)
def test_an_option_without_effect_is_an_error(command: str, option: str) -> None:
    errors = refused(*shlex.split(command))
    assert errors.startswith(f"{option}: E908 ")


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
