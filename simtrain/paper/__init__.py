"""The published tables, and ours beside them.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022).
"""

from simtrain.paper.comparison import Comparison, Row
from simtrain.paper.iteration_times import dp530b, table5
from simtrain.paper.layer_times import table4

__all__ = ["Comparison", "Row", "dp530b", "table4", "table5"]
