"""Scenario files to start from: a short one, and one with every field (`simtrain show fields`)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from simtrain.base.strict_yaml import as_scalar, data_of
from simtrain.scenario.schema import Scenario
from simtrain.scenario.section import (
    MEANT_BY_A_WORD,
    capitalized,
    descriptions,
    name_in_files,
    section_of,
    summary,
)

# JSON schema of scenario files, for completion and checks in editors.


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


START: dict[str, Any] = {
    "description": "A GPT of 8.3 billion parameters on a node of 8 GPUs",
    "model": {"num_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048},
    "parallelism": {"tensor": 8, "sequence_parallel": True},
    "batch": {"micro": 4, "global": 64},
    "recompute": {"strategy": "selective"},
    "cluster": "a100_sxm4_80gb",
}
"""The values that the files set; all other fields have their defaults."""
_HEAD = "# A scenario for simtrain. Run it with: simtrain run FILE\n"
_SHORT = """\
# All other fields have defaults. simtrain show fields lists each with its meaning.
"""
_FULL = """\
# A commented-out field shows its default; remove the "#" and change the value to set it.
"""
_WIDTH = 100
_FIRST_CLAUSE = re.compile(r"[.;:,](?:\s|$)|\s\(")


def template() -> str:
    """Return the text of a short file, which sets the fields of `START`."""
    return _HEAD + _SHORT + "\n".join(_short_lines(Scenario, START, "")) + "\n"


def full_template() -> str:
    """Return the text of a file that defines the scenario of `START` and lists every field."""
    scenario = Scenario.model_validate(START)
    return _HEAD + _FULL + "\n".join(_lines(Scenario, data_of(scenario), START, "")) + "\n"


def _short_lines(section: type[BaseModel], values: Mapping[str, Any], indent: str) -> Iterator[str]:
    texts = descriptions(section)
    names = {name_in_files(section, field): field for field in section.model_fields}
    for name, value in values.items():
        if isinstance(value, dict) and (inside := section_of(section, names[name])):
            yield f"{indent}{name}:"
            yield from _short_lines(inside, value, indent + "  ")
            continue
        line = f"{indent}{name}: {_written(value)}"
        commented = f"{line}  # {capitalized(_FIRST_CLAUSE.split(texts[name])[0])}"
        yield commented if indent and len(commented) <= _WIDTH else line


def _lines(
    section: type[BaseModel], values: Mapping[str, Any], shown: Mapping[str, Any], indent: str
) -> Iterator[str]:
    texts = descriptions(section)
    names = [name_in_files(section, field) for field in section.model_fields]
    # YAML reads a section without fields as null.
    shown = shown or {names[0]: values[names[0]]}
    for field, name, before in zip(section.model_fields, names, ["", *names], strict=False):
        inside = section_of(section, field)
        if isinstance(values[name], dict) and inside is not None:
            yield ""
            yield from _comment(summary(inside), indent)
            yield f"{indent}{name}:"
            yield from _lines(inside, values[name], shown.get(name, {}), indent + "  ")
            continue
        if not indent:
            yield ""
        # Adjacent fields with the same description print it once.
        if texts[name] != texts.get(before):
            yield from _comment(capitalized(texts[name]), indent)
        mark = "" if name in shown else "#"
        yield f"{indent}{mark}{name}: {_written(values[name])}"


def _comment(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
    )


def _written(value: Any) -> str:
    return "{}" if value == {} else as_scalar(value)
