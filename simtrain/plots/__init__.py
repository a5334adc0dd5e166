"""Pictures of a sweep's results: heat maps, the front of time against memory, scaling curves."""

from simtrain.plots.draw import Plots, write_plots
from simtrain.plots.results import Results, load_results

__all__ = ["Plots", "Results", "load_results", "write_plots"]
