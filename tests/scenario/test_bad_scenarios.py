"""Errors of malformed and illegal scenarios: place, code, message and fix."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from simtrain.base.strict_yaml import parse_document
from simtrain.errors import InputError
from simtrain.scenario import RULES, Scenario, load_scenario
from simtrain.scenario.remedies import changed, suggest, suggest_together
from tests.helpers.scenario_texts import MINIMAL, edited

CASES = yaml.safe_load(Path(__file__).with_name("bad_scenarios.yaml").read_text("utf-8"))
CASES += [
    {"name": "UTF-16", "text": MINIMAL.encode("utf-16"), "heads": [":1:1: E103"]},
    {"name": "not UTF-8", "text": MINIMAL.encode() + b"name: caf\xe9\n", "heads": [":9:10: E103"]},
    {"name": "endless", "add": f"name: 1{'0' * 5000}\n", "heads": [":9:7: E110"]},
]


def adding(text: str) -> str:
    """Return the minimal scenario with more lines, from line 9."""
    return MINIMAL + text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_bad_scenario_reports_all_its_errors(case: dict[str, Any], tmp_path: Path) -> None:
    path, text = tmp_path / "x.yaml", case.get("text", MINIMAL + case.get("add", ""))
    text = edited(case["old"], case["new"]) if "old" in case else text
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    heads = [str(problem).removeprefix(str(path)) for problem in caught.value.problems]
    assert len(heads) == len(case["heads"])
    for head, expected in zip(heads, case["heads"], strict=True):
        assert head.startswith(f"{expected} ")
    for words in case.get("says", ()):
        assert words in str(caught.value.problems[0])
    assert all(problem.fix or problem.code == "E207" for problem in caught.value.problems)


FROM_A_CIRCLE = adding(
    "attention_backend: unfused\nparallelism: {context: 2, interleave: 2}\nschedule: interleaved\n"
    "memory: {zero_stage: 3, shard_over: 1}\nrecompute: {num_layers: 2}\n"
)


def test_remedies_lead_to_a_legal_scenario() -> None:
    """Apply each remedy of the first problem, and then always the first remedy. After at most five
    steps the scenario is legal.
    """
    scenario = Scenario.from_document(parse_document(FROM_A_CIRCLE, "x.yaml"))
    for one in first_remedies(scenario):
        steps = 1
        while remedies := first_remedies(one):
            one, steps = remedies[0], steps + 1
        assert steps <= 5


def first_remedies(scenario: Scenario) -> list[Scenario]:
    """Return the scenario with each of the remedies of the first rule that it breaks."""
    for rule in RULES:
        if message := rule.check(scenario):
            fixes = suggest(scenario, rule, message, RULES).items()
            ways = [{field: value} for field, values in fixes for value in values]
            ways = ways or [suggest_together(scenario, rule, RULES) or {}]
            assert all(ways), rule.code
            return [one for way in ways if (one := changed(scenario, way))]
    return []


def test_the_override_that_causes_an_error_is_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    overlap = "overlap: {data_parallel: true, gradient_buckets: megatron}\n"
    path.write_text(adding(f"parallelism: {{data: 2}}\n{overlap}"), "utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(path, ["memory.zero_stage=2"])
    assert str(caught.value.problems[0]).startswith("--set memory.zero_stage=2: E362 ")


def test_a_missing_file_names_similar_ones(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MINIMAL, "utf-8")
    with pytest.raises(InputError, match=r"E101 no such file\n  fix: did you mean .*mine\.yaml\?"):
        load_scenario(tmp_path / "mien.yaml")
    with pytest.raises(InputError, match=r"nowhere cannot be read either: check the path"):
        load_scenario(tmp_path / "nowhere" / "x.yaml")


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    too_long = "a" * 5000 + ".yaml"
    for path, words in (
        (tmp_path, "is a folder, not a file"),
        ("a\0b.yaml", "cannot be read: embedded null byte"),
        (too_long, "cannot be read: File name too long"),
    ):
        with pytest.raises(InputError, match=f"E102 {words}"):
            load_scenario(path)
