"""What others published beside ours, from the tables of docs/published/*.yaml."""

import functools
import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import yaml

import simtrain
from docs.update.documents import ROOT
from docs.update.request import Request, signed_percent, table
from simtrain.base.mesh import Group
from simtrain.base.strict_yaml import apply_overrides, parse_document
from simtrain.durations.collectives import collective_seconds
from simtrain.hardware.load import load_profile
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.goodput import Training, draw_training, failures_of, fleet_of
from simtrain.studies.simulation import simulate
from simtrain.studies.variation import draw
from simtrain.units import DAY_S, HOUR_S
from simtrain.workload.work import Collective, CollectiveKind

QUANTITIES = {
    "iteration_s": "{:.3f} s",
    "mfu": "MFU {:.1%}",
    "gpu_hours": "{:,.0f} GPU-hours",
    "tflops": "{:.2f} TFLOP/s",
    "sequences_per_s": "{:.2f} sequences/s",
    "tokens_per_s_of_gpu": "{:,.0f} tokens/s per GPU",
    "node_kw": "{:.3g} kW",
    "mwh": "{:.3g} MWh",
}
"""Published quantities of iterations, and how they are written."""
_DRAWS_OF_ITERATIONS, _DRAWS_OF_TRAININGS = 1000, 10
_BANDS = {
    "64 KiB to 8 MiB": (2**16, 2**23),
    "16 to 128 MiB": (2**24, 2**27),
    "256 MiB and more": (2**28, 2**60),
}
"""Bytes of collectives."""


@functools.cache
def tables() -> dict[str, Any]:
    """Return the tables of all files by name."""
    files = sorted((ROOT / "docs/published").glob("*.yaml"))
    return {
        name: content
        for file in files
        for name, content in yaml.safe_load(file.read_text(encoding="utf-8")).items()
    }


def published(request: Request) -> str:
    """Return a table of the files: `published alpa`."""
    content = tables()[request.text]
    kind = next(kind for kind in _KINDS if kind in content)
    head, rows = _KINDS[kind]
    return table(head, rows(content))


# ------------------------------------------------------------------------------------- iterations


def scenario_of(content: Mapping[str, Any], run: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a run: one that ships or the table's base, with its settings."""
    settings = shlex.split(f"{content.get('set', '')} {run.get('set', '')}")
    if "base" not in content:
        return load_scenario(run.get("scenario") or content["scenario"], settings)

    document = parse_document(json.dumps(content["base"]), str(ROOT / "published.yaml"))
    return Scenario.from_document(apply_overrides(document, settings))


def simulated(scenario: Scenario, quantity: str, row: Mapping[str, Any]) -> float:
    """Return a quantity of `QUANTITIES` of a simulated iteration, or of a row's training."""
    if quantity in ("node_kw", "mwh"):
        cost = simtrain.cost(scenario, row.get("tokens", "1B"), goodput=row.get("goodput", 1.0))
        assert cost.energy is not None, "the profile has all powers"
        kwh = cost.energy.mean
        return kwh / 1000 if quantity == "mwh" else kwh / (cost.time_s / HOUR_S * cost.num_gpus / 8)

    result = simulate(scenario)
    time_s = result.iteration_time_s
    return {
        "iteration_s": time_s,
        "mfu": result.mfu,
        "gpu_hours": scenario.num_gpus * 1e12 / result.tokens_per_s / HOUR_S,
        "tflops": counted_flops(scenario) / scenario.num_gpus / time_s / 1e12,
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


def _iterations(content: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for run in content["runs"]:
        (quantity,) = QUANTITIES.keys() & run.keys()
        ours = simulated(scenario_of(content, run), quantity, content | run)
        text = QUANTITIES[quantity]
        error = signed_percent(ours / run[quantity] - 1)
        rows.append([run["run"], text.format(run[quantity]), text.format(ours), error])

    return rows


def _steps(content: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for step in content["steps"]:
        scenario = scenario_of(content, step)
        time = draw(scenario, draws=_DRAWS_OF_ITERATIONS).time
        median = f"{step['median_s']:g} s", f"{time.p50:.3g} s"
        tail = step["tail"], f"{time.p99 / time.p50:.3f}"
        deviation = step["deviation"], f"{100 * time.deviation / time.mean:.2f}"
        rows.append([step["run"], f"{scenario.num_gpus:,}", *median, *tail, *deviation])

    return rows


# -------------------------------------------------------------------------------------- trainings

_FIGURES: dict[str, Callable[[Training], float]] = {
    "unplanned interruptions": lambda training: training.num_interruptions,
    "effective time, %": lambda training: 100 * training.effective_ratio,
    "hours between failures": lambda training: (
        training.time_s / HOUR_S / max(1, training.num_interruptions)
    ),
    "failed GPUs": lambda training: training.interruptions.get("gpu", 0),
}


def _trainings(content: Mapping[str, Any]) -> list[list[str]]:
    """Return published figures of trainings beside the means of drawn ones."""
    rows = []
    for run in content["trainings"]:
        _, reliability = failures_of(load_profile(run["cluster"]))
        fleet = fleet_of(
            reliability,
            num_gpus=run["gpus"],
            gpus_per_node=8,
            num_parameters=int(float(run["parameters"])),
            iteration_time_s=20.0,
        )
        seeds = np.random.SeedSequence(0).spawn(_DRAWS_OF_TRAININGS)
        days_s = run["days"] * DAY_S
        trainings = [draw_training(fleet, seed, float("inf"), days_s) for seed in seeds]
        for figure, value in run["figures"].items():
            ours = np.mean([_FIGURES[figure](training) for training in trainings])
            rows.append([run["run"], figure, f"{value}", f"{ours:.3g}"])

    return rows


# ------------------------------------------------------------------------------------ collectives


def _collectives(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the mean and the worst error of each network's times, by band of sizes."""
    rows = []
    for network in content["networks"]:
        profile, nodes = load_profile(network["cluster"]), network["nodes"]
        kind = CollectiveKind(network["kind"])
        words = f"{kind.value.replace('_', '-')}, {nodes} nodes"
        for band, (least, most) in _BANDS.items():
            errors = [
                collective_seconds(Collective(kind, size, Group(("dp",), 8 * nodes, 8)), profile)
                / (time_us * 1e-6)
                - 1
                for size, time_us in network["times_us"].items()
                if least <= size <= most
            ]
            if errors:
                mean = signed_percent(float(np.mean(np.abs(errors))), 0).removeprefix("+")
                worst = signed_percent(max(errors, key=abs), 0)
                rows.append([network["network"], words, band, f"{len(errors)}", mean, worst])

    return rows


_KINDS = {
    "runs": (["run", "published", "simulated", "error"], _iterations),
    "steps": (
        [
            *("system", "GPUs", "median step", "drawn", "99th percentile / median", "drawn"),
            *("deviation, %", "drawn"),
        ],
        _steps,
    ),
    "trainings": (["training", "figure", "published", "simulated"], _trainings),
    "networks": (
        ["network", "collective", "array", "points", "mean \\|error\\|", "worst"],
        _collectives,
    ),
}
"""Heading and rows by the key that has a table's facts."""
