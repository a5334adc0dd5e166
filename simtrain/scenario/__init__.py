"""Scenarios: the model, its parallelism, its batch and its cluster, and the rules they obey."""

from simtrain.scenario.check import (
    REASONS,
    check_is_scenario,
    check_scenario,
    check_values,
    load_scenario,
    load_unchecked,
)
from simtrain.scenario.model import Model
from simtrain.scenario.parallelism import Parallelism, Placement
from simtrain.scenario.rule import Rule
from simtrain.scenario.rules import RULES
from simtrain.scenario.schema import Batch, Scenario
from simtrain.scenario.section import MemoryOptions, Overlap, Precision, RecomputePolicy
from simtrain.scenario.software import Software

__all__ = [
    "REASONS",
    "RULES",
    "Batch",
    "MemoryOptions",
    "Model",
    "Overlap",
    "Parallelism",
    "Placement",
    "Precision",
    "RecomputePolicy",
    "Rule",
    "Scenario",
    "Software",
    "check_is_scenario",
    "check_scenario",
    "check_values",
    "load_scenario",
    "load_unchecked",
]
