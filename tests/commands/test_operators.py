"""`run --show ops` and `run --show sources`: text, JSON and CSV show the same numbers."""

import csv
import io
import json

from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import call, refused

NAME = "table5_22b_present"
TABLE = simulate(load_scenario(NAME)).operators()


def test_json_and_csv_contain_all_operators() -> None:
    data = json.loads(call("run", NAME, "--show", "ops", "--format=json").stdout)
    records = json.loads(json.dumps(TABLE.records()))
    assert data["operators"] == records
    assert sum(one["share"] for one in records) <= 1
    rows = [*csv.DictReader(io.StringIO(call("run", NAME, "--show", "ops", "--format=csv").stdout))]
    assert [float(row["exposed_s"]) for row in rows] == [one["exposed_s"] for one in records]
    assert [row["entry"] for row in rows] == [one["entry"] for one in records]


def test_only_the_default_stage_is_called_the_slowest() -> None:
    slowest = call("run", "table5_175b_present", "--show", "ops").stdout
    chosen = call("run", "table5_175b_present", "--show", "ops", "--stages", "3").stdout
    assert "stage 7 of 0 to 7, the slowest" in " ".join(slowest.replace("  ", " ").split())
    assert "stage 3 of 0 to 7" in " ".join(chosen.split())
    assert "slowest" not in chosen


def test_a_stage_needs_ops() -> None:
    assert "--show ops" in refused("run", NAME, "--stages", "0")


def test_a_figure_is_explained_down_to_sources() -> None:
    data = json.loads(call("run", NAME, "--show", "sources", "--format=json").stdout)
    assert (data["scenario"], data["name"]) == (NAME, "iteration_time")
    assert data["value"] == TABLE.iteration_time_s
    assert data["sources"]["gemm.mainloop_flops"]["fitted_on"]


def test_an_unknown_figure_is_refused() -> None:
    errors = refused("run", NAME, "--show", "loss")
    assert "'mfu', 'hfu', 'peak_memory'" in errors
