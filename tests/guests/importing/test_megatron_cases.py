"""Arguments of Megatron-LM give these fields, notes and errors, and come back from an export."""

import tomllib
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.guests.importing.megatron.arguments import MAPPED, USERBUFFERS
from simtrain.guests.importing.megatron.export import megatron_script, values_of
from tests.helpers.imported import BASE, import_megatron, text_of, written

DATA = tomllib.loads(Path(__file__).with_name("megatron_cases.toml").read_text("utf-8"))
NEEDED = {name: DATA[name] for name in ("EXPERTS", "DISTRIBUTED")}


def completed(arguments: str) -> str:
    """Return arguments with what they need in place of its name."""
    for name, words in NEEDED.items():
        arguments = arguments.replace(f"{{{name}}}", words)
    return arguments


def plain(value: Any) -> Any:
    return "None" if value is None else [*value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("case", DATA["case"], ids=lambda case: case["arguments"][:80] or "none")
def test_arguments_set_fields_or_are_refused(case: dict[str, Any]) -> None:
    base = BASE.replace(" --bf16", "") if case.get("base") else BASE
    source = f"{base} {completed(case['arguments'])}"
    if "error" in case:
        with pytest.raises(InputError, match=case["error"]):
            import_megatron(source)
        return
    scenario, text = import_megatron(source)
    fields = case["fields"]
    assert {name: plain(attrgetter(name)(scenario)) for name in fields} == fields
    comments = " ".join(text.replace("#  ", "").split())
    assert [words for words in case.get("notes", ()) if words not in comments] == []
    assert [words for words in case.get("absent", ()) if words in comments] == []


@pytest.mark.parametrize("case", DATA["case"], ids=lambda case: case["arguments"][:80] or "none")
def test_an_import_comes_back_from_its_export(case: dict[str, Any]) -> None:
    if "error" in case or case.get("base"):
        return
    scenario, _ = import_megatron(f"{BASE} {completed(case['arguments'])}")
    script = written("again.sh", megatron_script(scenario))
    again, text = import_megatron(script, [f"cluster={scenario.cluster}"])
    lost = {line[4:].partition(":")[0] for line in Path(script).read_text().splitlines()}
    before, after = values_of(scenario), values_of(again)
    differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert differ <= lost, text


def test_each_mapped_argument_has_an_example() -> None:
    assert DATA["examples"].keys() == MAPPED.keys()


def test_a_mapped_argument_is_named_beside_its_field() -> None:
    for name, example in DATA["examples"].items():
        if example:
            words = completed(example)
            flag = next(word for word in reversed(words.split()) if word.startswith("--"))
            text = text_of(f"{BASE} {words}")
            lines = [line for line in text.splitlines() if flag in line]
            field = MAPPED[name].field.rpartition(".")[2]
            assert field in [line.split(":")[0].split()[-1] for line in lines], name


@pytest.mark.parametrize("name", sorted(USERBUFFERS))
def test_arguments_of_userbuffers_that_are_not_modelled_are_noted(name: str) -> None:
    neutral = "True" in USERBUFFERS[name].neutral
    argument = f"--{'disable-' * neutral}{name.replace('_', '-')}"
    value = " cfg.yaml" if name.endswith("cfg") else ""
    needs = "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"
    scenario, text = import_megatron(f"{BASE} {needs} {argument}{value}")
    assert scenario.overlap.userbuffers
    assert f"# - {argument}" in text
    assert USERBUFFERS[name].text in " ".join(text.replace("# ", "").split())
