"""Splits of a model that the related work names, beside the paper's, for docs/related_work.md.

The methods and models are those of the sweep `related_work`.
"""

import functools
from typing import Any

from docs.update.request import Request, seconds, table
from docs.update.simulations import evaluation_of
from simtrain.durations.collectives import total_wire_bytes
from simtrain.errors import InputError
from simtrain.paper.layer import layer_ops, saved_bytes
from simtrain.scenario import Scenario, check_scenario, load_scenario
from simtrain.studies.sweep.grid import load_sweep
from simtrain.units import format_bytes

LAYER = "175B"
"""The model whose layer the columns of bytes are about."""


@functools.cache
def labels(axis: str) -> dict[str, dict[str, Any]]:
    """Return the labels of an axis of the sweep, with the fields that each sets."""
    return load_sweep("related_work").file["axes"][axis]  # type: ignore[no-any-return]


@functools.cache
def scenario(model: str, method: str) -> Scenario:
    """Return the scenario of a point of the sweep."""
    changes = labels("model")[model] | labels("method")[method]
    return load_scenario("table5_22b_full").replace(changes)


def related_work(request: Request) -> str:
    """Return the table of methods."""
    head = ["method", "sent per layer", "saved per layer", *labels("model")]
    return table(head, [_row(method) for method in labels("method")])


def _row(method: str) -> list[str]:
    layer = scenario(LAYER, method)
    forward, backward = layer_ops(layer)
    of_layer = total_wire_bytes([*forward, *backward]), saved_bytes(layer)
    of_sequence = [format_bytes(num_bytes / layer.batch.micro) for num_bytes in of_layer]
    times = [_time(scenario(model, method)) for model in labels("model")]
    return [method, *of_sequence, *times]


def _time(point: Scenario) -> str:
    """Return the iteration time; in parentheses if it does not fit, a dash if it is illegal."""
    try:
        check_scenario(point)
    except InputError:
        return "–"
    evaluation = evaluation_of(point)
    assert evaluation.run is not None, "iterations run even if they do not fit"
    text = seconds(evaluation.run.iteration_time_s)
    return text if evaluation.fits else f"({text})"
