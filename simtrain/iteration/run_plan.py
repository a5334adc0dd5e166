"""Names that other rooms still import from here."""

from simtrain.iteration.planned import run_iteration, simulate_iteration

__all__ = ["run_iteration", "simulate_iteration"]
