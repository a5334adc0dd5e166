"""All exchanges of context-parallel ranks. A new one is a class in its own file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from simtrain.base.plug_ins import Parts
from simtrain.scenario.context_exchanges.all_gather import AllGather
from simtrain.scenario.context_exchanges.all_to_all import AllToAll
from simtrain.scenario.context_exchanges.context_exchange import ContextExchange
from simtrain.scenario.context_exchanges.hierarchical import Hierarchical
from simtrain.scenario.context_exchanges.ring import Ring
from simtrain.scenario.context_exchanges.ring_self_attention import RingSelfAttention

_HOUSE: tuple[ContextExchange, ...] = (
    Ring(),
    AllGather(),
    AllToAll(),
    Hierarchical(),
    RingSelfAttention(),
)
CONTEXT_EXCHANGES = Parts[ContextExchange]("context_exchanges", ContextExchange, _HOUSE)
"""The exchanges by name; the first is the default."""
if TYPE_CHECKING:
    ContextCommunication: TypeAlias = str
else:
    ContextCommunication = Literal[tuple(CONTEXT_EXCHANGES)]  # so that errors list the names
