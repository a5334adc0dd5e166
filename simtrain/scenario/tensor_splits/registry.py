"""All splits of matrices. A new one is a class in a file of its own and a line here."""

from __future__ import annotations

from simtrain.scenario.tensor_splits.cube import Cube
from simtrain.scenario.tensor_splits.hidden import Hidden
from simtrain.scenario.tensor_splits.split import TensorSplit
from simtrain.scenario.tensor_splits.summa import Summa
from simtrain.scenario.tensor_splits.tesseract import Tesseract

TENSOR_SPLITS: dict[str, TensorSplit] = {
    split.name: split for split in (Hidden(), Summa(), Tesseract(), Cube())
}
"""The splits by name, besides Megatron-LM's by columns and rows."""
