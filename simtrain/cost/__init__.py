"""Cost of a training run: days, GPU-hours, price and energy for a number of tokens."""

from simtrain.cost.training import TrainingCost, training_cost

__all__ = ["TrainingCost", "training_cost"]
