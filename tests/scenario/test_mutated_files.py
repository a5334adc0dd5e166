"""Files of scenarios with changed values, names and structure: each is read or refused."""

import pathlib
import random

import pytest

from simtrain.base.strict_yaml.validation import settable_names
from simtrain.errors import InputError
from simtrain.scenario import Scenario, check_scenario, load_scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate
from tests.helpers.toys import small

FIELDS = sorted(settable_names(Scenario))
VALUES = [
    *("0", "1", "2", "3", "8", "64", "1024", "-1", "1e18", "1000000000", "9" * 40, "1e308"),
    *("nan", ".inf", "''", "a", "null", "[]", "[1]", "{}", "{a: 1}", "true", "0.5", "fp8", "full"),
    *("auto", "1f1b", '"\\e[31m"', '"\\uD800"', "a" * 400, "[[1, 2], [3]]", "'0'", "-0.0"),
    *("1e-308", "2026-01-01"),
]
BASES = "table4_full", "llama3_8b", "mixtral_8x7b", "nemotron_h_8b", "llama3_70b_lora"


def mutated(rng: random.Random, text: str) -> str:
    """Change one or two places of a YAML text."""
    for _ in range(rng.randrange(1, 3)):
        lines = text.split("\n")
        number = rng.randrange(len(lines))
        name, colon, value = lines[number].partition(":")
        match rng.randrange(6):
            case 0:
                lines[number] = f"{name}: {rng.choice(VALUES)}"
            case 1:
                lines[number] = f"{rng.choice(FIELDS).rpartition('.')[2]}{colon}{value}"
            case 2:
                lines[number] = (
                    rng.choice(["  ", "\t", "- ", "? ", "&a ", "!!x ", "'"]) + lines[number]
                )
            case 3:
                lines.insert(number, rng.choice(lines))
            case 4:
                del lines[number]
            case 5:
                place = rng.randrange(len(lines[number]) + 1)
                wrong = rng.choice("\x00\x1b\x85\u2028{}[],:#*&!|>%@`\"'")
                lines[number] = lines[number][:place] + wrong + lines[number][place:]
        text = "\n".join(lines)
    return text


def texts() -> list[str]:
    from simtrain.base.resources import find_scenario

    return [find_scenario(name).read_text("utf-8") for name in BASES]


@pytest.mark.parametrize("count", [150, pytest.param(4_000, marks=pytest.mark.ci)])
def test_a_mutated_file_is_read_or_refused(count: int, tmp_path: pathlib.Path) -> None:
    rng, files = random.Random(count), texts()
    file = tmp_path / "scenario.yaml"
    for _ in range(count):
        file.write_text(mutated(rng, rng.choice(files)), "utf-8")
        try:
            load_scenario(file)
        except InputError as error:
            assert str(error)


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.ci)])
def test_a_mutated_field_is_read_or_refused(count: int) -> None:
    rng, evaluator = random.Random(count), Evaluator(allow_oom=True)
    for _ in range(count):
        fields = [rng.choice(FIELDS) for _ in range(rng.choice((1, 1, 2)))]
        overrides = [f"{field}={rng.choice(VALUES)}" for field in fields]
        try:
            scenario = load_scenario(rng.choice(BASES), overrides)
            if scenario.num_microbatches < 100 and scenario.model.num_layers < 100:
                run = evaluator.evaluate(scenario).run
                assert run is not None and 0 < run.iteration_time_s < 4e9, overrides
        except InputError as error:
            assert str(error)


def test_an_iteration_of_centuries_is_refused() -> None:
    """A hidden size of a billion, each of whose layers takes years."""
    sizes = {"hidden_size": 2**30, "ffn_hidden_size": 2**30, "num_attention_heads": 2**20}
    huge = {f"model.{name}": size for name, size in sizes.items()}
    scenario = small().replace(huge | {"model.seq_length": 2**20})
    check_scenario(scenario)
    with pytest.raises(InputError, match=r"E501 the iteration takes .* years, more than a century"):
        simulate(scenario)
    with pytest.raises(InputError, match="attention_speed"):
        load_scenario("llama3_8b", ["software.attention_speed=1e-308"])
