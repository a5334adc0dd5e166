"""Examples of the rules that are rows."""

from simtrain.base.strict_yaml import overlay, parse_document
from simtrain.scenario import Scenario
from simtrain.scenario.at_most import AtMost
from simtrain.scenario.divisibility import Divides
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.requirement import Requires
from simtrain.scenario.words import spell_out_words
from tests.helpers.scenario_texts import MINIMAL


def example_of(row: Requires | Excludes | Divides | AtMost) -> Scenario:
    """Return the scenario that breaks this row, and no other rule."""
    example = spell_out_words(parse_document(row.example, "example.yaml"))
    base = spell_out_words(parse_document(MINIMAL, "minimal.yaml"))
    return Scenario.from_document(overlay(base, example))
