"""Templates and copies of scenario files, and the schema with which editors check them."""

import pathlib
import re

import jsonschema
import pytest
from pydantic import BaseModel

from simtrain.base.resources import find_scenario, list_scenarios
from simtrain.base.strict_yaml import load_document, parse_document
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.section import descriptions, name_in_files, section_of, summary
from simtrain.scenario.template import full_template, scenario_schema, template
from tests.helpers.command_line import call, refused
from tests.helpers.scenario_texts import MINIMAL

VALIDATOR = jsonschema.Draft202012Validator(scenario_schema())

LEFT_OUT = (
    *("Experts", "LatentAttention", "Lora", "Mamba", "Pauses", "Slow", "SequenceLengths"),
    *("GarbageCollection", "DataLoader", "Periodic"),
)
"""Sections that the template leaves out."""


def sections(section: type[BaseModel] = Scenario) -> dict[str, type[BaseModel]]:
    found = {section.__name__: section}
    for name in section.model_fields:
        if inside := section_of(section, name):
            found |= sections(inside)
    return found


@pytest.mark.parametrize("name", sections())
def test_the_docstring_of_a_section_describes_its_fields_and_no_others(name: str) -> None:
    section = sections()[name]
    fields = {name_in_files(section, field) for field in section.model_fields}
    assert descriptions(section).keys() == fields
    assert summary(section).endswith((".", ":"))


def test_every_field_of_the_schema_has_a_description() -> None:
    schema = scenario_schema()
    parts = [schema, *schema["$defs"].values()]
    assert len(parts) == len(sections())
    for part in parts:
        # A line of a docstring that is not indented would end the description early.
        assert all(field["description"].endswith(".") for field in part["properties"].values())


@pytest.mark.parametrize("name", list_scenarios())
def test_shipped_scenarios_follow_the_schema(name: str) -> None:
    VALIDATOR.validate(load_document(find_scenario(name)).data)


@pytest.mark.parametrize(
    "line", ["recompute: fulll", "paralelism: {}", "batch: {}", "memory: {zero_stage: 4}"]
)
def test_the_schema_refuses_wrong_names_and_values(line: str) -> None:
    data = parse_document(MINIMAL, "x.yaml").data | parse_document(line, "y.yaml").data
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(data)


def test_the_full_template_shows_every_field_with_its_default(tmp_path: pathlib.Path) -> None:
    """Without the "#" before names, the template is the same scenario."""
    started, full = tmp_path / "scenario.yaml", tmp_path / "full.yaml"
    outcome = call("show", "fields", "-o", str(started))
    assert outcome.stdout == f"Wrote {started}. Run it with: simtrain run {started}\n"
    assert started.read_text(encoding="utf-8") == full_template()
    full.write_text(
        re.sub(r"^( *)#(?=\w)", r"\1", full_template(), flags=re.MULTILINE), encoding="utf-8"
    )
    written = load_document(full).data
    assert set(written) == {name_in_files(Scenario, name) for name in Scenario.model_fields}
    for name, section in sections().items():
        if name not in ("Scenario", *LEFT_OUT):
            assert len(section.model_fields) in {len(one) for one in written.values() if one}
    same = {"name": "scenario"}
    assert load_scenario(full).replace(same) == load_scenario(started).replace(same)


@pytest.mark.parametrize("text", [template(), full_template()])
def test_a_line_of_a_template_fits_100_columns(text: str) -> None:
    assert max(map(len, text.splitlines())) <= 100


def test_nothing_is_overwritten(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine", encoding="utf-8")
    for name in ("template", "llama3_70b", "h100_sxm"):
        errors = refused("show", name, "-o", str(file))
        assert errors.startswith(f"{file}: E113 the file exists\n")
    assert file.read_text(encoding="utf-8") == "mine"
    outcome = call("show", "template", "-o", str(tmp_path / "nowhere" / "x.yaml"))
    assert "E113 cannot write a file here: No such file" in outcome.stderr
