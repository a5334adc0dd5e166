"""Names that other rooms still import from here."""

from simtrain.durations.model import GemmMachine, gemm_is_extrapolated, gemm_seconds

__all__ = ["GemmMachine", "gemm_is_extrapolated", "gemm_seconds"]
