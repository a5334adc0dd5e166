"""Orders of actions that no schedule has by name: those of users' files, and new ones."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement


@dataclass(frozen=True, eq=False)
class Custom(ScheduleFamily):
    """Any order, as PyTorch's `_PipelineScheduleRuntime` runs it: with asynchronous transfers.

    Orders are equal if their actions are the same object, because comparing actions takes long.

    Args:
        actions: the actions; None for the sizes of no order in particular.
    """

    actions: Schedule | None = None

    name = "custom"
    is_given = True
    fewest_chunks, most_chunks = 2, None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.actions is other.actions

    def __hash__(self) -> int:
        return id(self.actions)

    @property
    def splits_backwards(self) -> bool:
        """Whether some of the actions are I and W."""
        return self.actions is not None and self.actions.splits_backwards

    @property
    def merges(self) -> bool:
        """Whether some of the actions are merged."""
        return self.actions is not None and self.actions.merges is not None

    @property
    def alternates(self) -> bool:
        """Return False: nothing is promised of other sizes."""
        return False

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return the placement of the actions if they have these sizes; otherwise a loop."""
        placement = self.actions and self.actions.placement
        has_sizes = placement and (placement.num_ranks, placement.interleave) == (p, m)
        return placement if placement and has_sizes else super().placement(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the actions."""
        if self.actions is None:
            raise NotImplementedError(self.name)
        return self.actions
