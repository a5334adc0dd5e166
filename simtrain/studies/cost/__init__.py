"""Cost of a training run: days, GPU-hours, price and energy for a number of tokens."""

from simtrain.studies.cost.limits import Budget, Limits, read_budget, read_price, read_tokens
from simtrain.studies.cost.training import TrainingCost, TrainingCosts, training_cost

__all__ = [
    "Budget",
    "Limits",
    "TrainingCost",
    "TrainingCosts",
    "read_budget",
    "read_price",
    "read_tokens",
    "training_cost",
]
