"""Columns of a sweep with the cost of tokens."""

import pathlib

import pytest

from simtrain.base.resources import find_profile
from simtrain.errors import InputError
from tests.helpers.sweep_files import plan_of, rows_of, run, with_axes


def test_costs_of_tokens_by_hand_and_the_cheapest_point_is_best(tmp_path: pathlib.Path) -> None:
    """An iteration has 256 tokens and runs on one or two GPUs of 400 W, in nodes of 8 GPUs and 6.5
    kW.
    """
    profiles = "cluster: [a100_sxm4_80gb, trn1]"
    columns = "days", "gpu_hours", "price", "gpu_energy_j", "node_energy_j"
    report = ", ".join(["iteration_time_s", *(f"{name}_per_1e9_tokens" for name in columns)])
    text = with_axes("parallelism.tensor: [1, 2]", profiles) + f"report: [{report}]\n"
    plan = plan_of(tmp_path, text + "objective: gpu_energy_j_per_1e9_tokens\n")
    best = run(plan, tmp_path / "out").counts.best
    rows = rows_of(tmp_path / "out")
    for row in rows:
        num_gpus, time_s = row["parallelism.tensor"], 1e9 / 256 * row["iteration_time_s"]
        hours = num_gpus * time_s / 3600
        energies_j = 400 * num_gpus * time_s, 6500 * num_gpus / 8 * time_s
        expected = time_s / 86400, hours, 3.43 * hours, *energies_j
        found = [row[f"{name}_per_1e9_tokens"] for name in columns]
        assert found[:2] == pytest.approx(expected[:2], rel=1e-12)
        if row["cluster"] == "trn1":
            assert found[2] > 0 and found[3:] == [None, None]
        else:
            assert found == pytest.approx(expected, rel=1e-12)
    measured = [row for row in rows if row["cluster"] != "trn1"]
    least = min(measured, key=lambda row: row["gpu_energy_j_per_1e9_tokens"])
    assert best and best.index == least["index"]


def test_prices_in_several_currencies_cannot_be_the_objective(tmp_path: pathlib.Path) -> None:
    text = find_profile("h100_sxm").read_text(encoding="utf-8")
    euros = tmp_path / "euros.yaml"
    euros.write_text(text.replace("6.88 USD/h", "6.88 EUR/h"), encoding="utf-8")
    axes = with_axes("cluster: [a100_sxm4_80gb, euros.yaml]")
    plan_of(tmp_path, axes + "objective: gpu_hours_per_1e9_tokens\n")
    objective = "objective: price_per_1e9_tokens\n"
    with pytest.raises(InputError, match="E809 the objective compares prices in several"):
        plan_of(tmp_path, axes + objective)
    price = "hardware.running_costs.price"
    with pytest.raises(InputError, match="a100_sxm4_80gb in USD, a100_sxm4_80gb in EUR"):
        plan_of(tmp_path, with_axes(f"{price}: [1 USD/h, 2 EUR/h]") + objective)
    assert plan_of(tmp_path, axes + objective, [f"{price}=2 EUR/h"]).report[-1] == objective[11:-1]


def test_the_named_objective_is_a_column_of_the_results(tmp_path: pathlib.Path) -> None:
    axes = with_axes("batch.micro: [1]")
    assert "mfu" in plan_of(tmp_path, axes).report
    for column in ("price_per_1e9_tokens", "mfu"):
        text = f"{axes}report: [iteration_time_s]\nobjective: {column}\n"
        assert plan_of(tmp_path, text).report == ("iteration_time_s", column)
