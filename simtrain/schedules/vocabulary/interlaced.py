"""Interlaced pipelines (nnScaler; Yeung et al. 2024): exposed vocabulary passes on all stages."""

from __future__ import annotations

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.vocabulary.split import VocabularySplit

_FORWARD = KINDS.index("F")


class Interlaced(VocabularySplit):
    """Both passes run between a microbatch's last forward and its first backward pass, exposed.

    So that no pass of another stage is cut, a stage runs either a forward pass before the backward
    pass of an interval, or after it, in turn. This needs half as many more microbatches in flight.
    """

    name = "interlaced"
    summary = "runs vocabulary passes and their barriers on all stages at once"
    num_intervals = 0

    def more_forwards(self, later_stages: int) -> int:
        """Return one for every two later stages, rounded up."""
        return (later_stages + 1) // 2

    def slots(self, schedule: Schedule) -> tuple[Ints, Ints]:
        """Return the slots of a block that is repeated every 3 slots: no pass of a stage runs when
        the last stage ends a forward pass.
        """
        later = schedule.num_stages - 1 - schedule.rank
        is_forward = schedule.kind == _FORWARD
        forward, backward = -later - (later + 1) // 2, 1 + 3 * later + later % 2
        starts = 3 * schedule.microbatch + np.where(is_forward, forward, backward)
        starts = starts - starts.min()
        return starts, starts + np.where(is_forward, 1, 2)

    def second_pass_times(self, ends: Ints, starts: Ints) -> Ints:
        """Return the times of the first passes."""
        return ends
