"""A rule is added as an object in a new file and a place in the table of rules, nothing else."""

import pathlib

import pytest

from tests.helpers.checkout import Checkout

pytestmark = [pytest.mark.slow, pytest.mark.ci]

NEW_FILE = '''
"""A rule of a framework that trains at most 16 layers."""

from simtrain.scenario.rule import against

LAYER_RULES = [
    against(
        "E300",
        lambda scenario: scenario.model.num_layers > 16,
        "model.num_layers is {scenario.model.num_layers}, more than 16",
        why="the framework numbers layers with four bits",
        example="model: {num_layers: 17}",
    ),
]
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project with one more rule."""
    copy = Checkout.copy(tmp_path_factory.mktemp("checkout"))
    copy.add("simtrain/scenario/few_layers_rules.py", NEW_FILE)
    rules = "simtrain/scenario/rules.py"
    line = "from simtrain.scenario.few_layers_rules import LAYER_RULES\n"
    copy.replace(
        rules,
        "from simtrain.scenario.schedule_rules",
        f"{line}from simtrain.scenario.schedule_rules",
    )
    copy.replace(rules, "    *SCHEDULE_RULES,\n", "    *SCHEDULE_RULES,\n    *LAYER_RULES,\n")
    return copy


def test_an_illegal_scenario_is_refused_with_the_nearest_legal_value(checkout: Checkout) -> None:
    errors = checkout.refused("run", "table5_22b_present")
    assert "E300 model.num_layers is 48, more than 16" in errors
    assert "reason: the framework numbers layers with four bits" in errors
    assert "fix: write model.num_layers: 16" in errors


def test_a_legal_scenario_runs(checkout: Checkout) -> None:
    checkout.call("run", "table5_22b_present", "--set", "model.num_layers=16")


def test_the_rule_is_explained(checkout: Checkout) -> None:
    page = checkout.call("show", "E300")
    assert "model.num_layers is 17, more than 16." in page
    assert "The framework numbers layers with four bits." in page
    assert "E300" in checkout.call("show", "errors")
    document = checkout.call("show", "reference/errors")
    assert "E300" in document


def test_a_sweep_counts_what_the_rule_refuses(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    sweep = tmp_path / "layers.yaml"
    sweep.write_text("base: table5_22b_present\naxes: {model.num_layers: [8, 16, 24]}\n", "utf-8")
    printed = checkout.call("sweep", str(sweep), "-o", str(tmp_path / "results"))
    assert "1  illegal, E300: the framework numbers layers with four bits" in printed


def test_a_search_keeps_to_the_rule(checkout: Checkout) -> None:
    errors = checkout.refused("search", "table5_22b_present", "--gpus", "8")
    assert "E300" in errors
