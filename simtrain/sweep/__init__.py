"""Sweeps: many scenarios from one file, their results on disk, and questions to them."""

from simtrain.sweep.load import load_plan
from simtrain.sweep.part import Part, run_part
from simtrain.sweep.plan import Plan

__all__ = ["Part", "Plan", "load_plan", "run_part"]
