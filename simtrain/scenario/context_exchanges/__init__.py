"""How context-parallel ranks exchange what attention needs: each way is one object in one file."""

from simtrain.scenario.context_exchanges.context_exchange import AttentionSteps, ContextExchange
from simtrain.scenario.context_exchanges.registry import CONTEXT_EXCHANGES, ContextCommunication

__all__ = ["CONTEXT_EXCHANGES", "AttentionSteps", "ContextCommunication", "ContextExchange"]
