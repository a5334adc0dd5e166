"""ZB-H2 (Qi et al. 2023): more warm-up forwards than 1F1B, and no bubble with equal passes."""

from __future__ import annotations

from simtrain.schedules.split_warmup import SplitWarmupFamily


class ZbH2(SplitWarmupFamily):
    """Two warm-up forwards per later stage, and two waiting weight gradients per earlier stage.

    Every stage holds up to 2p - 1 microbatches. Stages start and end one after the other, so the
    idle time is at the ends of an iteration.
    """

    name = "zb_h2"

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return two forwards for each later stage."""
        return min(2 * (p - rank - 1), n)

    def weight_delay(self, rank: int, p: int) -> int:
        """Return two for each earlier stage."""
        return 2 * rank
