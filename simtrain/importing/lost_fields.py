"""What an exported text says of a scenario: the values of its fields, and those that it loses."""

from __future__ import annotations

from typing import Any

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.parallelism import chunks_of_layout, layout_of_chunks
from simtrain.scenario.resolved import settings_of

_OF_SIMTRAIN = ("name", "description", "cluster", "hardware", "software", "variation")
"""Sections that no framework sets; of `software`, the facts are compared."""


def refuse_own_parts(scenario: Scenario, framework: str) -> None:
    """Refuse a scenario with adapters, which the framework does not have.

    Raises:
        InputError: the scenario has such a part (E882).
    """
    if scenario.model.lora:
        message = f"model.lora is set, but {framework} has no adapters"
        fix = "remove model.lora; Megatron-Bridge has adapters"
        raise InputError.of("E882", message, fix=fix, reason="it would train all weights")


def lost_fields(scenario: Scenario, imported: Scenario) -> list[str]:
    """Return a sentence for each field that differs after an import of the exported text."""
    before, after = values_of(scenario), values_of(imported)
    return [
        f"{field}: {before.get(field)}, after an import {after.get(field)}"
        for field in sorted(before.keys() | after.keys())
        if before.get(field) != after.get(field)
    ]


def comments_of(lost: list[str], subject: str) -> list[str]:
    """Return lines of comments that list lost fields; none if there are none.

    Args:
        lost: sentences of `lost_fields`.
        subject: what cannot say them, such as "Arguments".
    """
    first = f"# {subject} cannot say these fields of the scenario:"
    return [first, *(f"# - {sentence}" for sentence in lost)] if lost else []


def values_of(scenario: Scenario) -> dict[str, Any]:
    """Return all settings that a framework could say, with the facts of the software stack."""
    values = {
        field: value
        for field, value in settings_of(scenario).items()
        if field.partition(".")[0] not in _OF_SIMTRAIN and value is not None
    }
    if layout := values.get("parallelism.layout"):
        # (t|)*2 and t|t| are the same chunks.
        values["parallelism.layout"] = layout_of_chunks(chunks_of_layout(layout))
    facts = scenario.facts
    kernels = {f"software.{name}": getattr(facts.kernels, name) for name in facts.kernels.__slots__}
    launches = {
        "software.blocking_launches": facts.blocking_launches,
        "software.cuda_graphs": facts.cuda_graphs,
        "software.cuda_graph_modules": [*facts.cuda_graph_modules],
    }
    return values | kernels | launches
