"""Chimera (Li and Hoefler 2021, arXiv 2107.06925): 1F1B from both ends of the pipeline.

Two copies of the model run through the pipeline in opposite directions, each with half of the
microbatches. Rank r has stage r of one copy and stage p - 1 - r of the other, and reduces their
gradients with the rank that has them the other way round. With passes of F and B seconds, and K
units of p microbatches, the bubble is (p - 2)(max(F, B) + (K - 1)|F - B|) seconds, and rank r keeps
p/2 + 1 + min(r, p - 1 - r) microbatches of a stage (Table 2). Parameters are kept twice.

Units follow each other by direct concatenation. Forward doubling and backward halving, which avoid
the bubbles between them, run two microbatches or half of one in a pass, and are not simulated.
"""

from __future__ import annotations

from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.paired_slots import paired_slots
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, two_directions


class Chimera(ScheduleFamily):
    """One pipeline in each direction; more of them are not simulated."""

    name = "chimera"

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return ranks 0 to p - 1 for one copy of the model, p - 1 to 0 for the other."""
        return two_directions(p, m)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        """Return why p stages cannot run n microbatches; "" if they can."""
        if p % 2:
            return "chimera needs an even number of stages, or both directions meet in one slot"
        return "chimera runs half of the microbatches in each direction" if n % 2 else ""

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        return paired_slots(self.name, self.placement(p, m), n, unit=p // 2)
