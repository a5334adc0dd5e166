"""Names that other rooms still import from here."""

from simtrain.workload.blocks.router import RandomChoice, expected_places

__all__ = ["RandomChoice", "expected_places"]
