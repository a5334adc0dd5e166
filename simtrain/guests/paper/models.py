"""The four models of Table 3 under the strategies of Table 2."""

from __future__ import annotations

from simtrain.hardware.load import profile_of
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario, load_scenario

MODELS = ("22B", "175B", "530B", "1T")
BASELINE, PRESENT = "baseline", "selective+sequence"
STRATEGIES = (BASELINE, "sequence", "selective", PRESENT, "full")
"""Strategies with tensor parallelism, in the order of Table 2; names as in `Scenario.strategy`."""


def paper_scenario(model: str, strategy: str, *overrides: str) -> Scenario:
    """Load a model of Table 3 with a strategy of Table 2 and further overrides."""
    recompute, plus, _ = strategy.partition("+")
    sequence = bool(plus) or recompute == "sequence"
    return load_scenario(
        f"table5_{model.lower()}_full",
        (
            f"recompute={'none' if recompute in (BASELINE, 'sequence') else recompute}",
            f"parallelism.sequence_parallel={str(sequence).lower()}",
            *overrides,
        ),
    )


def paper_plan(scenario: Scenario) -> Plan:
    """Build the plan of a scenario on its cluster."""
    return Plan.of(scenario, profile_of(scenario).cluster.domains_of(scenario.num_gpus))
