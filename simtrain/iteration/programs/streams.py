"""Names that other rooms still import from here."""

from simtrain.iteration.programs.iteration_tasks import EMBEDDING, MODEL

__all__ = ["EMBEDDING", "MODEL"]
