"""`simtrain validate` on the table of its how-to."""

import json
import pathlib

import pytest

from docs.update.documents import write_files
from tests.helpers.command_line import ROOT, call

pytestmark = pytest.mark.slow
WORDS = "validate", "runs.csv", "--cluster", "h100_sxm", "--software", "megatron_core"


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The working directory, with the table."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_has_the_figures_and_every_run(folder: pathlib.Path) -> None:
    printed = json.loads(call(*WORDS, "--format=json").stdout)
    assert (printed["num_rows"], printed["num_simulated"], printed["num_refused"]) == (6, 6, 0)
    errors = [row["simulated_s"] / row["measured_s"] - 1 for row in printed["rows"]]
    assert printed["mean_abs_error"] == pytest.approx(sum(map(abs, errors)) / 6, rel=1e-12)
    assert {"median_error", "bias", "within_10_percent"} <= printed.keys()
    assert printed["rows"][0]["settings"]["GPUs"] == 32


def test_csv_has_every_run_in_order(folder: pathlib.Path) -> None:
    lines = call(*WORDS, "--format=csv", "--table", "runs").stdout.splitlines()
    assert lines[0].startswith("name,model,file,line,measured_s,simulated_s,error")
    assert [line.split(",")[3] for line in lines[1:]] == ["3", "4", "5", "6", "7", "8"]


def test_a_table_without_any_legal_run_exits_with_2(folder: pathlib.Path) -> None:
    table = (
        pathlib.Path("runs.csv")
        .read_text("utf-8")
        .replace(",8192,", ",0,")
        .replace(",4096,", ",0,")
    )
    pathlib.Path("runs.csv").write_text(table, "utf-8")
    outcome = call(*WORDS)
    assert outcome.exit_code == 2
    assert "FAILED: 0 of 6 rows simulated" in outcome.stdout
    assert "must be a whole number from 1" in outcome.stdout


def test_without_software_the_usual_stack_of_the_machine_is_assumed(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "runs.csv"
    lines = (ROOT / "docs/measured_runs/h100_dgxc.csv").read_text("utf-8").splitlines()
    file.write_text("\n".join([lines[0], *lines[-3:]]) + "\n", "utf-8")
    named = call("validate", str(file), "--cluster", "h100_sxm", "--software", "megatron_core")
    assumed = call("validate", str(file), "--cluster", "h100_sxm")
    note = "Assumed for 3 runs: software: megatron_core, which --software changes."
    assert note in assumed.stdout and "software:" not in named.stdout
    assert assumed.stdout.replace(f"{note}\n", "") == named.stdout
