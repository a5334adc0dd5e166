"""What simtrain answers for the scenarios that ship.

`pytest tests/test_snapshots.py --snapshot-update` writes it. Predictions have nine significant
digits; pages are those of a terminal of 80 columns. A difference is a prediction or a text that
moved: its commit says why.
"""

import itertools
import json
import pathlib
import re
import shlex
from contextlib import nullcontext
from typing import Any

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from calibrate.records.file import RecordFile
from simtrain.base.resources import list_scenarios
from simtrain.guests.paper.figures import draw
from simtrain.guests.paper.targets import reproduce
from simtrain.render import terminal
from simtrain.render.figures.style import footer_of_result, styled, write_figure
from simtrain.render.plain_text import markdown_text
from simtrain.render.terminal import terminal_page as drawn
from simtrain.render.traces.write import write_trace
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from simtrain.views.view import View
from tests.helpers.command_line import call, commands
from tests.helpers.drawings import artists_of
from tests.helpers.kineto import kernel, launched, step, write
from tests.helpers.measured_records import alone, header, linked
from tests.helpers.scenario_texts import MINIMAL
from tests.helpers.validation_records import iteration, iteration_record, layer, layer_record

NOT_PREDICTED = ("schema_version", "settings", "validated_on", "made_with", "evidence")
"""Keys of a result that repeat the scenario and the profile."""
DRAWN = "table4", "table5", "dp530b", "fig1", "fig7", "fig8", "fig9"
PAGES = (
    "run table5_22b_present",
    "run table5_175b_present",
    "run llama3_8b --draws 3 --set parallelism.pipeline=2",
    "run table5_530b_full --show memory",
    "run llama3_8b --show memory --allow-oom --set hardware.gpu.memory_capacity='20 GiB'",
    "run llama3_8b --allow-oom --set hardware.gpu.memory_capacity='20 GiB'",
    "run llama3_70b --format csv --table peaks",
    "run gpt2_1_5b --show ops --format csv",
    "run mixtral_8x7b --show ops",
    "run table5_22b_present --show ops --set parallelism.pipeline=2 --set batch.global=8",
    "run table5_22b_present --show sources",
    "run llama3_8b --show mfu",
    "run table5_175b_full --show peak_memory",
    "run table5_22b_present --show schedule --set parallelism.pipeline=2",
    "run table5_22b_present --show schedule --set parallelism.pipeline=2 --set schedule=zb_h1",
    "run table5_175b_present --show schedule --set batch.global=16",
    "run deepseek_v3 --show hfu",
    "run llama3_70b --show settings",
    "compare gpt2_1_5b",
    "compare table5_22b_full table5_22b_present",
    "compare llama3_8b nemotron4_15b llama3_8b llama3_70b",
    "compare llama3_8b gpt2_1_5b --set variation.kernels=0.05 --format csv",
    "compare llama3_70b --schedules --set batch.global=16",
    "compare mixtral_8x7b --schedules",
    "cost llama3_8b --tokens 1T --details",
    "cost table5_22b_present --tokens 300B --goodput 1 --pue 1.2 --co2 380",
    "cost table5_22b_present --days 3 --price '2.5 EUR/h' --details",
    "cost neuron_llama2_7b --tokens 1T --pue 1.2 --co2 380 --details",
    "cost gpt2_1_5b --tokens 1000",
    "cost gpt2_1_5b --tokens 100M",
    "search gpt2_1_5b --gpus 2 --top 3 --set batch.global=8 --details",
    "search gpt2_1_5b --gpus 2 --top 2 --format csv",
    "search qwen3_30b_a3b --gpus 8 --top 2 --set batch.global=8 --details",
    "search gpt2_1_5b --gpus 2 --set hardware.gpu.memory_capacity='26 GiB' --vary schedule",
    "search gpt2_1_5b --gpus 1,2 --tokens 1B",
    "search gpt2_1_5b --gpus 1..16 --tokens 1B --days 1 --budget 76 --details",
    "search gpt2_1_5b --gpus 2,6 --tokens 1B --goodput auto --cluster h20,trn1 --format csv",
    "show",
    "show profiles",
    "show trn1",
    "show llama3_8b",
    "show E310",
    *(f"reproduce {target}" for target in (*DRAWN, "table2", "appendix-c")),
    *(f"{name} --help" for name in ("", "calibrate", *commands())),
)
IN_COLOUR = (
    "run mixtral_8x7b --show ops",
    "run table5_22b_present --show schedule --set parallelism.pipeline=2",
    "compare gpt2_1_5b",
    "cost llama3_8b --tokens 1T --details",
)
DATA = (
    "compare table5_22b_full table5_22b_present",
    "compare mixtral_8x7b --schedules",
    "cost llama3_8b --tokens 1T",
    "search gpt2_1_5b --gpus 2 --top 2",
    "search gpt2_1_5b --gpus 1,2 --tokens 1B",
)
REFUSED = """
rum dp530b
help run
version
xyz
llama3_70
h100_sx
run a --formt csv
run a --show memory --gpu 16
run a --tp 4
run --seq-length 64 a
run a --fsdp
run a --batch-size 8
show --tp 4
run a --json
cost --csv
import a.sh --out=b.yaml
import hf config.json
import torch a.py:f
run
search a --tokens 1B
run a --show memry
run a --format foo
reproduce table6
search a --gpus 8 --top 0
compare a b --output=
run a --stages 1 --stages 2
run a b
run a --set batch.micro 2
run a --set
run dp530b --set tensor=4
run dp530b --set micro=4
run dp530b --set pipeline=4
run dp530b --set model.tensor=4
run dp530b --set parallelism.tensorr=4
run dp530b --set 'hardware.running_costs.price=$2/h'
run dp530b --set micro_batch_size=4
run dp530b --set parallelism.context_parallel=4
run dp530b --set precision.fp8=true
run dp530b --set schedule=bitpipe
run dp530b --set schedule=Interleaved1F1B
run dp530b --set schedule=1F1B
run dp530b --set hardware.nvlink=3
run dp530b --set cluster=min.yaml
run gpt2_1_5b -o no/x.html
run dp530b --set recompute=false
run dp530b --set precision.compute=mxfp8
run dp530b --set model.normalization=RMSNorm
run dp530b --set precision.compute=fp32 --set precision.gradients=bf16
run tabel5_22b_full
run dp530b --set x
run dp530b --set parallelism.tensor=many
run dp530b --set parallelism.tensor=7
run dp530b --set hardware.intra_node.bandwith=3
run nin.yaml
run nothing/x.yaml
run dp530b --set cluster=H100
run dp530b --set cluster=h100_sxn
run dp530b --set cluster=gb400
run dp530b --set model.num_layers=10001
run sweep.yaml
sweep mine.yaml -o x
search gpt2_1_5b --gpus 8,two
search gpt2_1_5b --gpus 0
run gpt2_1_5b -o x.png --stages 1
run gpt2_1_5b -o x.png --window 8s:9s
run ''
sweep '' --query 'select 1'
search gpt2_1_5b --gpus 8 -o ''
compare gpt2_1_5b -o ''
run gpt2_1_5b -o ''
import config.json -o ''
calibrate fit ''
run gpt2_1_5b -o x.CSV --window 0s:1s
show E310 --format json
run gpt2_1_5b --show schedule -o x.html
run gpt2_1_5b --show memory --draws 5
run gpt2_1_5b --draws 5 -o x.html
run gpt2_1_5b --stages 0
run gpt2_1_5b --window 0s:1s
compare gpt2_1_5b --schedules --change recompute=full
sweep interleave -o x --value mfu
sweep x --query 'select 1' -o x.html
show -o x
show scenarios -o x
run gpt2_1_5b --seed 3
run gpt2_1_5b --gpus 3
run gpt2_1_5b --scale-batch
run gpt2_1_5b --table peaks
run gpt2_1_5b --set batch.global=x --format json
run gpt2_1_5b --show memory --format csv --table stagess
run gpt2_1_5b --show schedule --format json
run gpt2_1_5b --show ops --stages 0,1
run gpt2_1_5b --show ops --stages x
run gpt2_1_5b -o x.json --window 1
run gpt2_1_5b -o x.json --window 1:2
run gpt2_1_5b -o x.html --measured runs.csv
run gpt2_1_5b -o x.doc
run gpt2_1_5b --measured runs.csv=3
run gpt2_1_5b --draws 0
run gpt2_1_5b -o mine.yaml
run table5_22b_present --set batch.global=4096 --set batch.micro=64
run llama3_8b --set hardware.gpu.memory_capacity='20 GiB'
run llama3_8b --set hardware.gpu.memory_capacity='20 GiB' --show memory --format csv
compare gpt2_1_5b llama3_8b --schedules
compare gpt2_1_5b --change batch.micro=x
compare gpt2_1_5b --change batch.micro=7
compare gpt2_1_5b -o x.pdf
compare llama3_8b gpt2_1_5b --set hardware.gpu.memory_capacity='20 GiB'
cost gpt2_1_5b
cost gpt2_1_5b --tokens 1B --days 3
cost gpt2_1_5b --tokens 1B --goodput x
cost gpt2_1_5b --tokens 1B --goodput 0.5 --details
cost gpt2_1_5b --tokens 1B --goodput 0.5 --seed 1
cost gpt2_1_5b --goodput 0.5
search gpt2_1_5b --gpus 2 --days 3
search gpt2_1_5b --gpus 2 --cluster h20
search gpt2_1_5b --gpus 1,2 --tokens 1B --top 3
search gpt2_1_5b --gpus 1,2 --tokens 1B --hold recompute
search gpt2_1_5b --gpus 1,2 --tokens 1B --scale-batch
search gpt2_1_5b --gpus 2 --set hardware.gpu.memory_capacity='6 GiB'
search gpt2_1_5b --gpus 1,2 --tokens 1B --days 0.1
show x
show E99999
show mine.yaml -o x
show gpt2_1_5b --format csv
sweep interleave --gpus 3
sweep interleave --gpus 32 --scale-batch --set parallelism.tensor=x
validate mine.yaml
validate runs.csv
"""
"""Command lines that end with an error, beside `mine.yaml` and `sweep.yaml`."""


def rounded(value: Any) -> Any:
    """Return plain data with nine digits but no rounding of sums, and the ends of long lists."""
    match value:
        case float():
            return float(f"{value:.9g}") if abs(value) > 1e-13 else 0.0
        case dict():
            return {name: rounded(each) for name, each in value.items()}
        case list() if len(value) > 4 and not isinstance(value[0], str):
            return [rounded(value[0]), f"{len(value)} entries", rounded(value[-1])]
        case list():
            return [rounded(each) for each in value]
    return value


def shortened(text: str) -> str:
    """Return the text with eight digits of numbers in full precision."""
    return re.sub(
        r"\b(?=[\d.]{16})\d+\.\d+(e-\d+)?", lambda number: f"{float(number[0]):.8g}", text
    )


def answer(*words: str) -> dict[str, Any]:
    """Return the rounded JSON that a command prints."""
    outcome = call(*words, "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    data = json.loads(outcome.stdout, parse_constant=pytest.fail)
    return {name: rounded(each) for name, each in data.items() if name not in NOT_PREDICTED}


def lines_of(data: dict[str, Any]) -> str:
    """Return a line for each key, so that a difference shows which of them moved."""
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in data.items())


@pytest.mark.parametrize("name", list_scenarios())
def test_a_prediction_stays(name: str, snapshot: SnapshotAssertion) -> None:
    assert lines_of(answer("run", name, "--allow-oom")) == snapshot


@pytest.mark.parametrize("command", DATA)
def test_the_data_of_an_answer_stay(command: str, snapshot: SnapshotAssertion) -> None:
    assert lines_of(answer(*shlex.split(command))) == snapshot


@pytest.mark.parametrize("command", PAGES)
def test_a_page_stays(
    command: str, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simtrain.commands.printing._PLAIN_WIDTH", 80)
    monkeypatch.setenv("COLUMNS", "80")
    views = list[View]()

    def record(view: View) -> Any:
        views.append(view)
        return drawn(view)

    monkeypatch.setattr(terminal, "terminal_page", record)
    outcome = call(*shlex.split(command))
    assert outcome.exit_code == 0, outcome.stderr
    assert not {"nan", "nan%", "inf", "inf%", "-inf"} & {*outcome.stdout.lower().split()}
    text = shortened(outcome.stdout)
    assert "\n".join(line.rstrip() for line in text.splitlines()) == snapshot
    for view in views if command in IN_COLOUR else ():
        console = Console(width=46, force_terminal=True, color_system="truecolor")
        with console.capture() as capture:
            console.print(drawn(view))
        assert capture.get() == snapshot
        assert markdown_text(view) == snapshot


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("--gpus 2", 40),
        ("--gpus 2", 95),
        ("--gpus 2 --set batch.global=8", 60),
        ("--gpus 1,2 --tokens 1B", 18),
        ("--gpus 1,2 --tokens 1B", 80),
    ],
)
def test_a_page_of_a_search_that_is_interrupted_stays(
    words: str, number: int, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = itertools.count()
    pressed = nullcontext(lambda: next(asked) >= number)
    monkeypatch.setattr("simtrain.commands.printing.first_interrupt", lambda: pressed)
    assert call("search", "gpt2_1_5b", *words.split()).stdout == snapshot


@pytest.mark.parametrize("command", REFUSED.strip().splitlines())
def test_an_error_stays(
    command: str,
    tmp_path: pathlib.Path,
    snapshot: SnapshotAssertion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("mine.yaml").write_text(MINIMAL, "utf-8")
    pathlib.Path("sweep.yaml").write_text("axes: {batch.micro: [1]}\nbase: dp530b\n", "utf-8")
    outcome = call(*shlex.split(command))
    assert outcome.exit_code
    assert f"{outcome.stdout}{outcome.stderr}exits with {outcome.exit_code}" == snapshot
    assert {file.name for file in tmp_path.iterdir()} == {"mine.yaml", "sweep.yaml"}


@pytest.mark.parametrize("target", DRAWN)
def test_a_drawing_of_the_paper_stays(target: str, snapshot: SnapshotAssertion) -> None:
    with styled():
        assert "\n".join(artists_of(draw(target, reproduce(target)))) == snapshot


@pytest.mark.parametrize("stages", [1, 2])
def test_drawings_of_an_iteration_stay(
    stages: int, tmp_path: pathlib.Path, snapshot: SnapshotAssertion
) -> None:
    layers = f"model.num_layers={max(stages, 8)}"
    changes = [f"parallelism.pipeline={stages}", layers, "batch.global=64", "name=mine"]
    result = simulate(load_scenario("table5_22b_present", changes[: 2 + stages]))
    for plot in (result.memory.plot, result.breakdown.plot, result.timeline.plot):
        write_figure(figure := plot(), tmp_path / "x", footer_of_result(result))
        assert "\n".join(artists_of(figure)) == snapshot


def test_a_trace_stays(tmp_path: pathlib.Path, snapshot: SnapshotAssertion) -> None:
    changes = ["parallelism.pipeline=2", "model.num_layers=2", "batch.global=8"]
    changes += ["overlap.data_parallel=true", "parallelism.data=2"]
    write_trace(simulate(load_scenario("table5_22b_present", changes)), tmp_path / "t.json", [0])
    lines = (tmp_path / "t.json").read_text("utf-8").splitlines()
    assert "\n".join(lines[::4]) == snapshot


def test_a_trace_beside_an_iteration_stays(
    tmp_path: pathlib.Path, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["s16816gemm_bf16", "ln_fwd_kernel", "ncclDevKernel_AllReduce_Sum", "softmax", "adam"]
    names += [f"{'k' * (60 + number)}" for number in range(8)]
    events = [step(0, 0, 9000), step(1, 9000, 8000), kernel("lone", 9500, 40)]
    for number in range(40):
        name, start = names[number % len(names)], 400 * number + 50
        events += launched(name, start - 20 - number, start, 90 + number, number)
    write(pathlib.Path("t.json"), events)
    name = "table5_22b_present", "--set", "model.num_layers=2"
    assert call("compare", *name, "t.json").stdout == snapshot
    assert lines_of(answer("compare", *name, "t.json")) == snapshot


def test_a_fit_of_measurements_stays(
    tmp_path: pathlib.Path, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = RecordFile(pathlib.Path("measured"), header(num_ranks=8, backend="nccl"))
    layers = [layer_record(layer(each)) for each in ("none", "full")]
    for record in [*alone(), *linked(), *layers, iteration_record(iteration("none"), slower=1.1)]:
        file.write(record)
    fit = "calibrate", "fit", "measured", "--base", "h100_sxm", "-o", "mine.yaml", "--details"
    assert call(*fit).stdout == snapshot
    assert pathlib.Path("mine.yaml").read_text("utf-8") == snapshot
    assert call("validate", "measured", "--cluster", "mine.yaml").stdout == snapshot


@pytest.mark.parametrize(
    "command", ["compare llama3_70b --schedules --set batch.global=16", "compare gpt2_1_5b"]
)
def test_a_page_of_a_browser_stays(
    command: str, tmp_path: pathlib.Path, snapshot: SnapshotAssertion
) -> None:
    file = tmp_path / "report.html"
    outcome = call(*shlex.split(command), "-o", str(file))
    assert outcome.exit_code == 0, outcome.stderr
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>|data:[^\"]*", "", file.read_text("utf-8"))
    text = re.sub(r"(?s)(<tbody>(?:<tr.*?</tr>){1}).*?(?=</tbody>)", r"\1", text)
    assert shortened(text).replace("><", ">\n<") == snapshot
