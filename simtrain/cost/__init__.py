"""What training costs: days, GPU-hours, price and energy for a number of tokens."""

from simtrain.cost.page import cost_page
from simtrain.cost.training import TrainingCost, training_cost

__all__ = ["TrainingCost", "cost_page", "training_cost"]
