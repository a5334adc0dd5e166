"""Plans of training runs: the best layout on each cluster and number of GPUs, and its cost."""

from simtrain.planning.files import write_plan
from simtrain.planning.gpus import read_gpus
from simtrain.planning.result import PlanRow, TrainingPlan
from simtrain.planning.run import plan_training

__all__ = ["PlanRow", "TrainingPlan", "plan_training", "read_gpus", "write_plan"]
