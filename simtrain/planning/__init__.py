"""Plans of training runs: best layout and cost for each cluster and number of GPUs."""

from simtrain.planning.files import write_plan
from simtrain.planning.gpus import read_gpus
from simtrain.planning.result import PlanRow, TrainingPlan
from simtrain.planning.run import plan_training

__all__ = ["PlanRow", "TrainingPlan", "plan_training", "read_gpus", "write_plan"]
