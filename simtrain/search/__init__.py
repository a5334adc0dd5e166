"""Search for the best layout of a model on a given number of GPUs."""

from simtrain.search.files import write_scenarios
from simtrain.search.objective import Objective
from simtrain.search.result import SearchResult
from simtrain.search.run import search

__all__ = ["Objective", "SearchResult", "search", "write_scenarios"]
