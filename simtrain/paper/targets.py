"""The targets of `simtrain reproduce`: published tables and figures beside simulated ones.

Sources: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(2022), and the example of Rajbhandari et al., "ZeRO" (2020).
"""

from simtrain.paper.entries import (
    AllTargets,
    PaperEntry,
    Progress,
    Reproduction,
    TargetResult,
    TimeComparison,
)
from simtrain.paper.layer import fig7, fig8, table2
from simtrain.paper.memory import appendix_c, fig1, fig9, zero
from simtrain.paper.times import dp530b, table4, table5

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
