"""Names that other rooms still import from here."""

from simtrain.scenario.parallelism import (
    CONTEXT_EXCHANGES,
    AttentionSteps,
    ContextExchange,
    TensorT,
)

__all__ = ["CONTEXT_EXCHANGES", "AttentionSteps", "ContextExchange", "TensorT"]
