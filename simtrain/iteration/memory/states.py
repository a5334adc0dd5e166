"""Names that other rooms still import from here."""

from simtrain.iteration.memory.buffers import ModelStates, model_states, rank_states

__all__ = ["ModelStates", "model_states", "rank_states"]
