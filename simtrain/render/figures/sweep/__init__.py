"""Figures of a sweep's results: heat map, Pareto front of time and memory, scaling curves."""

from simtrain.render.figures.sweep.draw import Plots, write_plots
from simtrain.render.figures.sweep.results import Results, load_results

__all__ = ["Plots", "Results", "load_results", "write_plots"]
