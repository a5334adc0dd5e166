"""Search for the best layout of a model on a given number of GPUs."""

from simtrain.studies.search.files import write_scenarios
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.run import search

__all__ = ["SearchResult", "search", "write_scenarios"]
