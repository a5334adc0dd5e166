"""A minimal scenario as text, and how to change it, for the tests of the boundary."""

from simtrain.scenario import Scenario, scenario_from_document
from simtrain.strict_yaml import parse_document

MINIMAL = """\
model:
  num_layers: 48
  hidden_size: 6144
  num_attention_heads: 64
  seq_length: 2048
batch:
  micro: 4
  global: 64
"""


def edited(old: str, new: str) -> str:
    """The minimal scenario with one of its pieces written otherwise."""
    assert MINIMAL.count(old) == 1
    return MINIMAL.replace(old, new)


def scenario_of(text: str) -> Scenario:
    return scenario_from_document(parse_document(text, "x.yaml"))
