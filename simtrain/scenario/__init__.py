"""Scenarios: the model, its parallelism, its batch and its cluster, and the rules they obey."""

from simtrain.scenario.check import (
    REASONS,
    check_cluster,
    check_is_scenario,
    check_scenario,
    check_values,
)
from simtrain.scenario.load import load_scenario, load_unchecked
from simtrain.scenario.memory_options import MemoryOptions
from simtrain.scenario.model import Model
from simtrain.scenario.offload_section import Offload
from simtrain.scenario.overlap import Overlap
from simtrain.scenario.parallelism import Parallelism, Placement
from simtrain.scenario.precision import Precision
from simtrain.scenario.recompute_section import RecomputePolicy
from simtrain.scenario.rule import Rule
from simtrain.scenario.rules import RULES
from simtrain.scenario.schema import Batch, Scenario
from simtrain.scenario.software_section import Software

__all__ = [
    "REASONS",
    "RULES",
    "Batch",
    "MemoryOptions",
    "Model",
    "Offload",
    "Overlap",
    "Parallelism",
    "Placement",
    "Precision",
    "RecomputePolicy",
    "Rule",
    "Scenario",
    "Software",
    "check_cluster",
    "check_is_scenario",
    "check_scenario",
    "check_values",
    "load_scenario",
    "load_unchecked",
]
