"""Cost of a training run: days, GPU-hours, price and energy for a number of tokens."""

from simtrain.studies.cost.limits import Budget, CostLimits, read_budget
from simtrain.studies.cost.terms import Terms
from simtrain.studies.cost.training import (
    TrainingCost,
    TrainingCosts,
    cost_of_result,
    training_cost,
)
from simtrain.studies.cost_request import Contract

__all__ = [
    "Budget",
    "Contract",
    "CostLimits",
    "Terms",
    "TrainingCost",
    "TrainingCosts",
    "cost_of_result",
    "read_budget",
    "training_cost",
]
