"""All dispatchers. A new one is a class in a file of its own and a line here."""

from __future__ import annotations

from simtrain.scenario.dispatchers.all_gather import AllGather
from simtrain.scenario.dispatchers.all_to_all import AllToAll
from simtrain.scenario.dispatchers.deepep import DeepEP
from simtrain.scenario.dispatchers.dispatcher import Dispatcher
from simtrain.scenario.dispatchers.hybridep import HybridEP

DISPATCHERS: dict[str, Dispatcher] = {
    dispatcher.name: dispatcher for dispatcher in (AllToAll(), AllGather(), DeepEP(), HybridEP())
}
"""The dispatchers by name; the first is the default."""
DEFAULT = next(iter(DISPATCHERS.values()))
