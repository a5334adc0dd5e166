"""How tensor-parallel ranks split the matrices of each layer: each split is one object in a file.

Megatron-LM's split by columns and rows is none of them: it is what `workload.blocks` does without.
"""

from simtrain.scenario.tensor_splits.registry import TENSOR_SPLITS
from simtrain.scenario.tensor_splits.split import (
    LinearSplit,
    Move,
    Multiplication,
    TensorSplit,
    VectorSplit,
    size_of,
)

__all__ = [
    "TENSOR_SPLITS",
    "LinearSplit",
    "Move",
    "Multiplication",
    "TensorSplit",
    "VectorSplit",
    "size_of",
]
