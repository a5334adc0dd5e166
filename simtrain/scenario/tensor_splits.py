"""Names that other rooms still import from here."""

from simtrain.scenario.parallelism import TENSOR_SPLITS, Shares, TensorSplit

__all__ = ["TENSOR_SPLITS", "Shares", "TensorSplit"]
