"""Iterations that others published beside ours, from docs/published/iterations.yaml."""

import functools
import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from docs.update.documents import ROOT
from docs.update.request import Request, signed_percent, table
from simtrain.base.strict_yaml import apply_overrides, parse_document
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.simulation import simulate

FILE = ROOT / "docs/published/iterations.yaml"
QUANTITIES = {
    "iteration_s": "{:.3f} s",
    "mfu": "MFU {:.1%}",
    "gpu_hours": "{:,.0f} GPU-hours",
    "tflops": "{:.2f} TFLOP/s",
    "sequences_per_s": "{:.2f} sequences/s",
    "tokens_per_s_of_gpu": "{:,.0f} tokens/s per GPU",
}
"""Published quantities, and how they are written."""


@functools.cache
def tables() -> dict[str, Any]:
    """Return the tables of the file by name."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def scenario_of(base: Mapping[str, Any] | None, run: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a run: one that ships or the table's base, with its settings."""
    settings = shlex.split(run.get("set", ""))
    if base is None:
        return load_scenario(run["scenario"], settings)

    document = parse_document(json.dumps(base), str(FILE))
    return Scenario.from_document(apply_overrides(document, settings))


def simulated(result: Result, quantity: str) -> float:
    """Return a quantity of `QUANTITIES` of a simulated iteration."""
    scenario, time_s = result.scenario, result.iteration_time_s
    if quantity == "tflops":
        return counted_flops(scenario) / scenario.num_gpus / time_s / 1e12

    return {
        "iteration_s": time_s,
        "mfu": result.mfu,
        "gpu_hours": scenario.num_gpus * 1e12 / result.tokens_per_s / 3600,
        "sequences_per_s": scenario.batch.global_ / time_s,
        "tokens_per_s_of_gpu": result.tokens_per_s / scenario.num_gpus,
    }[quantity]


def counted_flops(scenario: Scenario) -> float:
    """Return the FLOPs of an iteration of a GPT with full recompute.

    96 B s l h^2 (1 + s / 6h) + 6 B s h V (Narayanan et al. 2021, Equation 3).
    """
    model = scenario.model
    length, hidden = model.seq_length, model.hidden_size
    tokens = scenario.batch.global_ * length
    of_layers = 96 * tokens * model.num_layers * hidden**2 * (1 + length / (6 * hidden))
    return of_layers + 6 * tokens * hidden * model.vocab_size


def published(request: Request) -> str:
    """Return a table of the file: `published alpa`."""
    content = tables()[request.text]
    rows = []
    for run in content["runs"]:
        (quantity,) = QUANTITIES.keys() & run.keys()
        ours = simulated(simulate(scenario_of(content.get("base"), run)), quantity)
        text = QUANTITIES[quantity]
        error = signed_percent(ours / run[quantity] - 1)
        rows.append([run["run"], text.format(run[quantity]), text.format(ours), error])

    return table(["run", "published", "simulated", "error"], rows)
