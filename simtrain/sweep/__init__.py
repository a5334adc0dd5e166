"""Sweeps: a grid of scenarios from one file, results on disk, and SQL queries over them."""

from simtrain.sweep.load import load_plan
from simtrain.sweep.part import Part, run_part
from simtrain.sweep.plan import Plan

__all__ = ["Part", "Plan", "load_plan", "run_part"]
