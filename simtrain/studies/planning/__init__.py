"""Plans of training runs: best layout and cost for each cluster and number of GPUs."""

from simtrain.studies.planning.files import write_plan
from simtrain.studies.planning.gpus import read_gpus
from simtrain.studies.planning.request import PlanRequest
from simtrain.studies.planning.result import PlanRow, TrainingPlan
from simtrain.studies.planning.run import plan

__all__ = ["PlanRequest", "PlanRow", "TrainingPlan", "plan", "read_gpus", "write_plan"]
