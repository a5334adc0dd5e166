"""Chimera (Li and Hoefler 2021, arXiv 2107.06925): 1F1B from both ends of the pipeline.

Two copies of the model run through the pipeline in opposite directions, each with half of the
microbatches. Rank r has stage r of one copy and stage p - 1 - r of the other, and reduces their
gradients with the rank that has them the other way round. With passes of F and B seconds, and K
units of p microbatches, the bubble is (p - 2)(max(F, B) + (K - 1)|F - B|) seconds, and rank r keeps
p/2 + 1 + min(r, p - 1 - r) microbatches of a stage (Table 2). Parameters are kept twice.

Units of `chimera` follow each other by direct concatenation, with bubbles between them if B > F.
Forward doubling (Section 3.5) runs the forward passes of two microbatches in a slot, which lasts as
long as one backward pass of 2F, and keeps twice as many microbatches. Here each microbatch has
passes and messages of its own, so the second one is sent later than the first: with F <= B <= 2F,
the bubble is (p - 2)(F + B)/2 seconds for any number of units, where one pass of both has (p - 2)B.
Backward halving is the same order with microbatches of half the size.
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
            return (
                f"{self.name} needs an even number of stages, or both directions meet in one slot"
            )
        return f"{self.name} runs half of the microbatches in each direction" if n % 2 else ""

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        return paired_slots(self.name, self.placement(p, m), n, unit=p // 2)


class ChimeraDouble(Chimera):
    """Chimera with forward doubling: two microbatches in each slot."""

    name = "chimera_double"

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        return paired_slots(self.name, self.placement(p, m), n, unit=p // 2, together=2)
