"""Names that other rooms still import from here."""

from simtrain.workload.blocks.linear import LinearOps

__all__ = ["LinearOps"]
