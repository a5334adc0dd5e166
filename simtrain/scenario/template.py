"""The scenario file that `simtrain init` writes: every field with its description and default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from simtrain.base.strict_yaml import as_scalar, data_of
from simtrain.scenario.field_docs import (
    capitalized,
    descriptions,
    name_in_files,
    section_of,
    summary,
)
from simtrain.scenario.schema import Scenario

START: dict[str, Any] = {
    "description": "A GPT of 8.3 billion parameters on a node of 8 GPUs",
    "model": {
        "num_layers": 40,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "seq_length": 2048,
    },
    "parallelism": {"tensor": 8, "sequence_parallel": True},
    "batch": {"micro": 4, "global": 64},
    "recompute": {"strategy": "selective"},
}
"""The values that the file sets; all other fields have their defaults."""
_HEAD = """\
# A scenario for simtrain. Run it with: simtrain run FILE
# A commented-out field shows its default; remove the "#" and change the value to set it.
"""
_WIDTH = 100


def template() -> str:
    """Return the text of the file, which defines the scenario of `START`."""
    scenario = Scenario.model_validate(START)
    return _HEAD + "\n".join(_lines(Scenario, data_of(scenario), START, "")) + "\n"


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
