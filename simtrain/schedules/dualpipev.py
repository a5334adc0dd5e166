"""DualPipeV (Sea AI Lab and DeepSeek-AI 2025): a V whose two chunks hide behind each other.

Microbatches go down one arm of the V and up the other. In the main phase each rank merges forward
passes of one chunk with backward passes of the other. With equal chunks on p ranks and forward
passes as long as input gradients, the bubble is (p - 1)(F&B + B - 3W) seconds, where F&B is a
merged pass, and each rank keeps 2p + 1 microbatches of a chunk.
"""

from __future__ import annotations

from simtrain.schedules.dual_order import StageLane, dual_order
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth


class DualPipeV(ScheduleFamily):
    """PyTorch's `ScheduleDualPipeV`."""

    name = "dualpipev"
    fewest_chunks = most_chunks = 2
    torch_names = ("dualpipev",)

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return ranks 0 to p - 1, then p - 1 to 0."""
        return back_and_forth(p, m)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        """Return why p stages cannot run n microbatches; "" if they can."""
        return f"dualpipev needs 2 microbatches per stage ({2 * p}) or more" if n < 2 * p else ""

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        placement = self.placement(p, m)
        ranks = []
        for rank in range(p):
            near, far = map(StageLane, placement.virtual_stages[rank])
            ranks.append(dual_order(near, far, rank, p, n))
        return Schedule.of(self.name, placement, n, ranks)
