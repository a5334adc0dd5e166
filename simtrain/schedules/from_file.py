"""Orders of actions from files of users, which no framework has by name."""

from __future__ import annotations

from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule


class OrderOfFile(ScheduleFamily):
    """Any order, as PyTorch's `_PipelineScheduleRuntime` runs it: with asynchronous transfers."""

    name = "custom"
    is_of_file = True
    has_chunks = True
    blocks = False
    aligns_reductions = False

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Files have the actions (`files.read_schedule`)."""
        raise NotImplementedError(self.name)
