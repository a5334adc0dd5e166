"""JSON schema of scenario files, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from simtrain.scenario.field_docs import capitalized, descriptions, section_of, summary
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import MEANT_BY_A_WORD


def scenario_schema() -> dict[str, Any]:
    """Return the JSON schema of scenarios, with a description of every field.

    The schema covers names, types and limits of single values. `check_scenario` also checks the
    rules on combinations of values.
    """
    schema = Scenario.model_json_schema(by_alias=True)
    sections = schema["$defs"] | {Scenario.__name__: schema}
    for section in _sections(Scenario):
        _describe(sections[section.__name__], section)
    for name, field in MEANT_BY_A_WORD.items():
        whole = schema["properties"][name]
        reference = whole.pop("$ref")
        word = schema["$defs"][reference.rpartition("/")[2]]["properties"][field]
        whole["anyOf"] = [{"$ref": reference}, word]
    # A recorded program has its own model and batch.
    model_or_program = [{"required": schema.pop("required")}, {"required": ["program"]}]
    schema["anyOf"] = model_or_program
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Scenario of simtrain",
    }
    return head | {name: value for name, value in schema.items() if name not in head}


def _sections(section: type[BaseModel]) -> set[type[BaseModel]]:
    inside = (section_of(section, name) for name in section.model_fields)
    return {section}.union(*(_sections(kind) for kind in inside if kind is not None))


def _describe(schema: dict[str, Any], section: type[BaseModel]) -> None:
    schema["description"] = summary(section)
    texts = descriptions(section)
    for name, field in schema["properties"].items():
        # Examples are prose for error messages ("2 or auto"), not values.
        field.pop("examples", None)
        field.pop("title", None)
        field["description"] = capitalized(texts[name])
