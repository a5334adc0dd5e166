"""The targets of `simtrain reproduce`: published tables and figures beside simulated ones.

Sources: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(2022), and the example of Rajbhandari et al., "ZeRO" (2020).
"""

from simtrain.paper.entries import AllTargets as AllTargets
from simtrain.paper.entries import PaperEntry as PaperEntry
from simtrain.paper.entries import Progress as Progress
from simtrain.paper.entries import Reproduction as Reproduction
from simtrain.paper.entries import TargetResult as TargetResult
from simtrain.paper.entries import TimeComparison as TimeComparison
from simtrain.paper.layer import fig7 as fig7
from simtrain.paper.layer import fig8 as fig8
from simtrain.paper.layer import table2 as table2
from simtrain.paper.memory import appendix_c as appendix_c
from simtrain.paper.memory import fig1 as fig1
from simtrain.paper.memory import fig9 as fig9
from simtrain.paper.memory import zero as zero
from simtrain.paper.times import dp530b as dp530b
from simtrain.paper.times import table4 as table4
from simtrain.paper.times import table5 as table5


def reproduce(target: str, progress: Progress | None = None) -> TargetResult:
    """Simulate a table or figure and compare it with the published values."""
    result: TargetResult = globals()[target.replace("-", "_")](progress)
    return result
