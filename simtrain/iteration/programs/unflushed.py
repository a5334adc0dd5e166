"""Names that other rooms still import from here."""

from simtrain.iteration.programs.iteration_tasks import repeat, steady_iteration

__all__ = ["repeat", "steady_iteration"]
