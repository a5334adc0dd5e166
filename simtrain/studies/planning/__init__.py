"""Plans of training runs: best layout and cost for each cluster and number of GPUs."""

from simtrain.studies.planning.files import write_plan
from simtrain.studies.planning.gpus import read_gpus
from simtrain.studies.planning.result import PlanRow, TrainingPlan
from simtrain.studies.planning.run import plan_training

__all__ = ["PlanRow", "TrainingPlan", "plan_training", "read_gpus", "write_plan"]
