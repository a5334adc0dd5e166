"""Breadth-first pipeline (Lamy-Poirier 2022): all microbatches on a chunk, then the next chunk."""

from __future__ import annotations

from simtrain.schedules.actions import Action
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule


class LoopedBfs(ScheduleFamily):
    """PyTorch's `ScheduleLoopedBFS`: backward passes run in the opposite order of the forwards."""

    name = "looped_bfs"
    most_chunks = None
    torch_names = ("loopedbfs",)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        placement, ranks = self.placement(p, m), []
        for stages in placement.virtual_stages:
            forwards = [Action(stage, "F", number) for stage in stages for number in range(n)]
            ranks.append([*forwards, *(action._replace(kind="B") for action in forwards[::-1])])
        return Schedule.of(self.name, placement, n, ranks)
