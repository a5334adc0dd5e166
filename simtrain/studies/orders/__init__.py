"""Orders of a pipeline's passes: `simtrain schedule compare` and `simtrain schedule optimize`."""

from simtrain.studies.orders.comparison import (
    RefusedSchedule,
    ScheduleComparison,
    ScheduleTrial,
    compare_schedules,
)
from simtrain.studies.orders.optimize import optimize_order
from simtrain.studies.orders.result import NamedOrder, OptimizedOrder

__all__ = [
    "NamedOrder",
    "OptimizedOrder",
    "RefusedSchedule",
    "ScheduleComparison",
    "ScheduleTrial",
    "compare_schedules",
    "optimize_order",
]
