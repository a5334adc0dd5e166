"""Names that other rooms still import from here."""

from simtrain.workload.blocks.elementwise import softmax_kernels

__all__ = ["softmax_kernels"]
