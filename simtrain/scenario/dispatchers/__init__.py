"""How tokens reach their experts: each dispatcher is one object in one file."""

from simtrain.scenario.dispatchers.dispatcher import Dispatcher, ExpertSteps, Routed
from simtrain.scenario.dispatchers.registry import DEFAULT, DISPATCHERS, ExpertDispatch

__all__ = ["DEFAULT", "DISPATCHERS", "Dispatcher", "ExpertDispatch", "ExpertSteps", "Routed"]
