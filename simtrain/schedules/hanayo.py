"""Hanayo (Liu et al. 2023, arXiv 2308.15762): waves over the pipeline, with one copy of the model.

Chunks are placed on ranks 0 to p - 1 and back; each way there and back is a wave, so w waves have
2w chunks per stage. One wave on p ranks is one half of Chimera on 2p ranks. With passes of F and B
seconds for a whole stage, and K units of p microbatches, the bubble is
(p - 1)(max(F, B) + (K - 1)|F - B|)/w seconds, and rank r keeps (2w - 1)p + 1 + r microbatches of a
chunk.
"""

from __future__ import annotations

from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.paired_slots import paired_slots
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth


class Hanayo(ScheduleFamily):
    """Two chunks per stage and wave."""

    name = "hanayo"
    fewest_chunks, most_chunks = 2, None
    chunks_per_wave = 2

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return ranks 0 to p - 1, then p - 1 to 0, and so on."""
        return back_and_forth(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        return paired_slots(self.name, self.placement(p, m), n, unit=p)
