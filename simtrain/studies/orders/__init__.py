"""Find an order of a pipeline's actions: `simtrain schedule optimize`."""

from simtrain.studies.orders.optimize import optimize_order
from simtrain.studies.orders.result import NamedOrder, OptimizedOrder

__all__ = ["NamedOrder", "OptimizedOrder", "optimize_order"]
