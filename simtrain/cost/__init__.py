"""Cost of a training run: days, GPU-hours, price and energy for a number of tokens."""

from simtrain.cost.limits import read_tokens
from simtrain.cost.training import TrainingCost, training_cost

__all__ = ["TrainingCost", "read_tokens", "training_cost"]
