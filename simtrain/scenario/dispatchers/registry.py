"""All dispatchers. A new one is a class in a file of its own and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from simtrain.base.plug_ins import Parts
from simtrain.scenario.dispatchers.all_gather import AllGather
from simtrain.scenario.dispatchers.all_to_all import AllToAll
from simtrain.scenario.dispatchers.deepep import DeepEP
from simtrain.scenario.dispatchers.dispatcher import Dispatcher
from simtrain.scenario.dispatchers.hybridep import HybridEP

_HOUSE: tuple[Dispatcher, ...] = (AllToAll(), AllGather(), DeepEP(), HybridEP())
DISPATCHERS = Parts[Dispatcher]("dispatchers", Dispatcher, _HOUSE)
"""The dispatchers by name; the first is the default."""
DEFAULT = _HOUSE[0]
if TYPE_CHECKING:
    ExpertDispatch: TypeAlias = str
else:
    ExpertDispatch = Literal[tuple(DISPATCHERS)]  # so that errors list the names
