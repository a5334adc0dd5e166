"""The targets of `simtrain reproduce`: published tables and figures beside simulated ones.

Sources: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(2022), and the example of Rajbhandari et al., "ZeRO" (2020).
"""

from simtrain.paper.activation_shares import fig7
from simtrain.paper.entries import (
    AllTargets,
    PaperEntry,
    Progress,
    Reproduction,
    TargetResult,
    TimeComparison,
)
from simtrain.paper.gpu_memory import fig1
from simtrain.paper.kept_microbatches import appendix_c
from simtrain.paper.layer_work import table2
from simtrain.paper.recompute_times import fig8
from simtrain.paper.stage_memory import fig9
from simtrain.paper.times import dp530b, table4, table5
from simtrain.paper.zero_example import zero

__all__ = [
    "AllTargets",
    "PaperEntry",
    "Progress",
    "Reproduction",
    "TargetResult",
    "TimeComparison",
    "appendix_c",
    "dp530b",
    "fig1",
    "fig7",
    "fig8",
    "fig9",
    "reproduce",
    "table2",
    "table4",
    "table5",
    "zero",
]


def reproduce(target: str, progress: Progress | None = None) -> TargetResult:
    """Simulate a table or figure and compare it with the published values."""
    result: TargetResult = globals()[target.replace("-", "_")](progress)
    return result
