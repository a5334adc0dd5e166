"""Sweeps: a grid of scenarios from one file, results on disk, and SQL queries over them."""

from simtrain.studies.sweep.load import load_plan
from simtrain.studies.sweep.part import SweepPart, run_part
from simtrain.studies.sweep.plan import SweepPlan

__all__ = ["SweepPart", "SweepPlan", "load_plan", "run_part"]
