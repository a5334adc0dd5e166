"""How tokens reach their experts: each dispatcher is one object in one file."""

from simtrain.scenario.dispatchers.dispatcher import Dispatcher, ExpertSteps, Routed
from simtrain.scenario.dispatchers.registry import DEFAULT, DISPATCHERS

__all__ = ["DEFAULT", "DISPATCHERS", "Dispatcher", "ExpertSteps", "Routed"]
