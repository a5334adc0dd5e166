"""Bytes, memory and time of a layer by split of its matrices, for docs/related_work.md."""

from collections.abc import Iterator
from typing import Any

import simtrain
from docs.update.request import Request, table
from simtrain.durations.collectives import total_wire_bytes
from simtrain.hardware.load import profile_of
from simtrain.paper.layer import layer_ops, saved_bytes
from simtrain.paper.models import paper_plan
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_layer
from simtrain.workload.chunk import layer_parameters

_MIB = 2**20
_SEQUENCES = 16
_DEPTHS = {8: 2, 64: 4}
_RANKS: dict[str, tuple[int, ...]] = {
    "1d": (4, 8, 16, 64),
    "1d, sequence parallel": (4, 8, 16, 64),
    "hidden": (4, 8, 16, 64),
    "2d": (4, 16, 64),
    "2.5d": (8, 64),
    "3d": (8, 64),
}
"""Numbers of ranks by split."""


def _settings(name: str, ranks: int) -> dict[str, Any]:
    """Return the fields of section parallelism for a row of the table."""
    split, _, sequence = name.partition(", ")
    depth = _DEPTHS[ranks] if split == "2.5d" else None
    return {
        "tensor": ranks,
        "tensor_split": split,
        "tensor_depth": depth,
        "sequence_parallel": bool(sequence),
    }


def _scenarios() -> Iterator[tuple[int, str, Scenario]]:
    """Yield the paper's 22B on each number of ranks with each split."""
    base = simtrain.load_scenario("table5_22b_present")
    batch = {"batch.micro": _SEQUENCES, "batch.global": _SEQUENCES}
    for ranks in (4, 8, 16, 64):
        for name, numbers in _RANKS.items():
            if ranks in numbers:
                split = _settings(name, ranks).items()
                changes = {f"parallelism.{field}": value for field, value in split}
                yield ranks, name, base.replace(changes | batch)


def tensor_split_layers(request: Request) -> str:
    """Return a table of one layer of the paper's 22B by number of ranks and split."""
    rows = []
    for ranks, name, scenario in _scenarios():
        passes = layer_ops(scenario)
        plan = paper_plan(scenario)
        (layer,) = layer_parameters(plan.layers_pass(1, "F").chunk, plan.microbatch)
        time_s = sum(each.duration_s for each in simulate_layer(scenario, profile_of(scenario)))
        rows.append(
            [
                str(ranks),
                name,
                *(f"{total_wire_bytes(ops) / _MIB:,.0f}" for ops in passes),
                f"{saved_bytes(scenario) / _MIB:,.0f}",
                f"{layer.total / 1e6:,.1f}",
                f"{1e3 * time_s:,.1f}",
            ]
        )
    head = ["ranks", "split", "sent forward, MiB", "sent backward, MiB", "saved, MiB"]
    return table([*head, "parameters, millions", "time, ms"], rows)
