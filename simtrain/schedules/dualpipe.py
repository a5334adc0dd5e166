"""DualPipe (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report"): microbatches from both ends.

Two copies of the model run through the pipeline in opposite directions, each with half of the
microbatches. Rank r has stage r of one copy and stage p - 1 - r of the other, and merges forward
passes of one with backward passes of the other. With equal stages and forward passes as long as
input gradients, the bubble is (p/2 - 1)(F&B + B - 3W) seconds, where F&B is a merged pass, and each
rank keeps p + 1 microbatches of a stage. Parameters are kept twice.
"""

from __future__ import annotations

from collections import deque

from simtrain.base.values import dataclass, field
from simtrain.schedules.actions import Action, Cell, Kind, MergedActions
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth, two_directions


class DualPipe(ScheduleFamily):
    """The order of DeepSeek-AI's repository DualPipe (dualpipe.py)."""

    name = "dualpipe"

    def placement(self, p: int, m: int) -> StagePlacement:
        return two_directions(p, m)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        if p % 2:
            return "dualpipe needs an even number of stages, half of them before the middle"
        if n % 2:
            return "dualpipe runs half of the microbatches in each direction"
        return f"dualpipe needs 2 microbatches per stage ({2 * p}) or more" if n < 2 * p else ""

    def build(self, p: int, m: int, n: int) -> Schedule:
        placement, ranks = self.placement(p, m), []
        for rank in range(p):
            stages = placement.virtual_stages[rank]
            lanes = [StageLane(stage, placement.microbatches(stage, n)[0]) for stage in stages]
            # The lane of the copy that begins at the nearer end of the pipeline comes first.
            near, far = lanes if rank < p // 2 else reversed(lanes)
            ranks.append(dual_order(near, far, min(rank, p - 1 - rank), p // 2, n // 2))
        return Schedule.of(self.name, placement, n, ranks)


# ------------------------------------------------------------------------------
# The order of a rank in DualPipe and DualPipeV: two lanes of passes that hide behind each other.
#
# Each rank has two virtual stages. Microbatches reach the near one first: in DualPipeV, as they
# go down the first arm of a V; in DualPipe, from the near end of the pipeline. The steps are
# those of PyTorch's `ScheduleDualPipeV._calculate_single_rank_operations` and of DeepSeek-AI's
# repository DualPipe (dualpipe.py, dualpipev.py, 2025).


@dataclass
class StageLane:
    """The passes of a virtual stage, which run microbatches in order from `first_microbatch`."""

    virtual_stage: int
    first_microbatch: int = 0
    _counts: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})

    def forward(self) -> Action:
        return self._next("F", "forward")

    def backward(self, kind: Kind = "B") -> Action:
        return self._next(kind, "backward")

    def _next(self, kind: Kind, direction: str) -> Action:
        number = self._counts[direction]
        self._counts[direction] += 1
        return Action(self.virtual_stage, kind, self.first_microbatch + number)


def dual_order(near: StageLane, far: StageLane, rank: int, p: int, n: int) -> list[Cell]:
    """Return the cells of a rank.

    Args:
        near, far: the lanes of the rank's virtual stages.
        rank: number of the rank from the end of the pipeline where the near lane begins.
        p: number of ranks until the lanes turn (DualPipeV) or meet (DualPipe).
        n: number of microbatches of each lane, 2p or more.
    """
    return _Steps(near, far).cells(rank, p, n)


@dataclass
class _Steps:
    near: StageLane
    far: StageLane
    line: list[Cell] = field(default_factory=list)
    delayed: deque[Action] = field(default_factory=deque)
    """Weight gradients that have not run yet."""

    def cells(self, rank: int, p: int, n: int) -> list[Cell]:
        """Run the eight steps of DualPipe's `step`."""
        near, far, before = self.near, self.far, p - rank - 1
        self.line += [near.forward() for _ in range(2 * before)]
        for _ in range(rank + 1):
            self.line += [near.forward(), far.forward()]
        for _ in range(before):
            self.input_gradients(far)
            self.weight_gradients()
            self.line.append(far.forward())
        for turn in range(n - 2 * p + rank + 1):
            # The last rank has both ends of the lanes side by side. Merging their first passes
            # would delay the backward passes of all other ranks.
            if turn == 0 and rank == p - 1:
                self.line += [near.forward(), far.backward()]
            else:
                self.merge(near, far)
            self.merge(far, near)
        for _ in range(before):
            self.line.append(far.backward())
            self.merge(far, near)
        # The second half of the remaining backward passes delays weight gradients: 2 (rank + 1)
        # passes in turn, of both lanes.
        for number in range(2 * (rank + 1)):
            lane = near if number % 2 else far
            if number > rank:
                self.input_gradients(lane)
            else:
                self.line.append(lane.backward())
        for _ in range(before):
            self.weight_gradients()
            self.input_gradients(near)
        for _ in range(rank + 1):
            self.weight_gradients()
        return self.line

    def merge(self, forward: StageLane, backward: StageLane) -> None:
        self.line.append(MergedActions(forward.forward(), backward.backward()))

    def input_gradients(self, lane: StageLane) -> None:
        action = lane.backward("I")
        self.line.append(action)
        self.delayed.append(action._replace(kind="W"))

    def weight_gradients(self) -> None:
        if self.delayed:
            self.line.append(self.delayed.popleft())


# ------------------------------------------------------------------------------
# DualPipeV (Sea AI Lab and DeepSeek-AI 2025): a V whose two chunks hide behind each other.
#
# Microbatches go down one arm of the V and up the other. In the main phase each rank merges
# forward passes of one chunk with backward passes of the other. With equal chunks on p ranks and
# forward passes as long as input gradients, the bubble is (p - 1)(F&B + B - 3W) seconds, where
# F&B is a merged pass, and each rank keeps 2p + 1 microbatches of a chunk.


class DualPipeV(ScheduleFamily):
    """PyTorch's `ScheduleDualPipeV`."""

    name = "dualpipev"
    fewest_chunks = most_chunks = 2
    torch_names = ("dualpipev",)

    def placement(self, p: int, m: int) -> StagePlacement:
        return back_and_forth(p, m)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        return f"dualpipev needs 2 microbatches per stage ({2 * p}) or more" if n < 2 * p else ""

    def build(self, p: int, m: int, n: int) -> Schedule:
        placement = self.placement(p, m)
        ranks = []
        for rank in range(p):
            near, far = map(StageLane, placement.virtual_stages[rank])
            ranks.append(dual_order(near, far, rank, p, n))
        return Schedule.of(self.name, placement, n, ranks)
