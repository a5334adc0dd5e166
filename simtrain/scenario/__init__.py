"""The user's question: what to train, split how, on which machine, and whether that is legal."""

from simtrain.scenario.check import check_cluster, check_scenario
from simtrain.scenario.load import load_scenario, scenario_from_document
from simtrain.scenario.nearest import Fix
from simtrain.scenario.rules import RULES
from simtrain.scenario.schema import (
    Batch,
    Model,
    Overlap,
    Parallelism,
    Precision,
    Scenario,
    ScheduleName,
)
from simtrain.scenario.violation import Rule, Violation

__all__ = [
    "RULES",
    "Batch",
    "Fix",
    "Model",
    "Overlap",
    "Parallelism",
    "Precision",
    "Rule",
    "Scenario",
    "ScheduleName",
    "Violation",
    "check_cluster",
    "check_scenario",
    "load_scenario",
    "scenario_from_document",
]
