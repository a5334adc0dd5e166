"""Names that other rooms still import from here."""

from simtrain.workload.blocks.elementwise import MASK_BYTES, dropout

__all__ = ["MASK_BYTES", "dropout"]
