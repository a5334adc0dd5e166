"""DualPipe (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report"): microbatches from both ends.

Two copies of the model run through the pipeline in opposite directions, each with half of the
microbatches. Rank r has stage r of one copy and stage p - 1 - r of the other, and merges forward
passes of one with backward passes of the other. With equal stages and forward passes as long as
input gradients, the bubble is (p/2 - 1)(F&B + B - 3W) seconds, where F&B is a merged pass, and each
rank keeps p + 1 microbatches of a stage. Parameters are kept twice.
"""

from __future__ import annotations

from simtrain.schedules.dual_order import StageLane, dual_order
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, two_directions


class DualPipe(ScheduleFamily):
    """The order of DeepSeek-AI's repository DualPipe (dualpipe.py)."""

    name = "dualpipe"

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return ranks 0 to p - 1 for one copy of the model, p - 1 to 0 for the other."""
        return two_directions(p, m)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        """Return why p stages cannot run n microbatches; "" if they can."""
        if p % 2:
            return "dualpipe needs an even number of stages, half of them before the middle"
        if n % 2:
            return "dualpipe runs half of the microbatches in each direction"
        return f"dualpipe needs 2 microbatches per stage ({2 * p}) or more" if n < 2 * p else ""

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        placement, ranks = self.placement(p, m), []
        for rank in range(p):
            stages = placement.virtual_stages[rank]
            lanes = [StageLane(stage, placement.microbatches(stage, n)[0]) for stage in stages]
            # The lane of the copy that begins at the nearer end of the pipeline comes first.
            near, far = lanes if rank < p // 2 else reversed(lanes)
            ranks.append(dual_order(near, far, min(rank, p - 1 - rank), p // 2, n // 2))
        return Schedule.of(self.name, placement, n, ranks)
