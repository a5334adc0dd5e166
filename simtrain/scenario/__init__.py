"""The user's question: what to train, split how, on which machine, and whether that is legal."""

from simtrain.scenario.check import (
    REASONS,
    RULES,
    check_cluster,
    check_scenario,
    check_some,
    check_values,
)
from simtrain.scenario.load import load_scenario, load_unchecked, scenario_from_document
from simtrain.scenario.nearest import Fix
from simtrain.scenario.schema import (
    Batch,
    MemoryOptions,
    Model,
    Overlap,
    Parallelism,
    Precision,
    RecomputePolicy,
    Scenario,
    ScheduleName,
)
from simtrain.scenario.violation import Rule, Violation

__all__ = [
    "REASONS",
    "RULES",
    "Batch",
    "Fix",
    "MemoryOptions",
    "Model",
    "Overlap",
    "Parallelism",
    "Precision",
    "RecomputePolicy",
    "Rule",
    "Scenario",
    "ScheduleName",
    "Violation",
    "check_cluster",
    "check_scenario",
    "check_some",
    "check_values",
    "load_scenario",
    "load_unchecked",
    "scenario_from_document",
]
