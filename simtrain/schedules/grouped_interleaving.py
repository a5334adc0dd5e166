"""Interleaving strategies of PipeOffload (Wan et al. 2025): groups of few microbatches."""

from __future__ import annotations

from simtrain.schedules.schedule import Schedule
from simtrain.schedules.split_warmup import SplitWarmupFamily, first_microbatches


class Gis(SplitWarmupFamily):
    """GIS: interleaved 1F1B with one warm-up forward less per later stage.

    A stage sends the input gradient before it computes the weight gradient, so its neighbour does
    not wait for the latter. Source: `GroupBuildingBlockScheduler` of sail-sg's zero-bubble
    repository.
    """

    name = "gis"
    fewest_chunks, most_chunks = 2, None
    validates_steps = False

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return a group of each chunk but one, and one forward for each later stage."""
        return min((m - 1) * self.group_of(p, n) + p - rank - 1, m * n)

    def weight_delay(self, rank: int, p: int) -> int:
        """Return 0: each weight gradient follows its input gradient."""
        return 0

    def group_of(self, p: int, n: int) -> int:
        """Return one microbatch per stage."""
        return p

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of whole groups, without the microbatches that the last one lacks."""
        group = self.group_of(p, n)
        return first_microbatches(super().build(p, m, -(-n // group) * group), n)


class GisH(Gis):
    """GIS-H: groups of half as many microbatches need less memory, with a longer bubble."""

    name = "gis_h"

    def group_of(self, p: int, n: int) -> int:
        """Return one microbatch per two stages."""
        return -(-p // 2)
