"""PipeDream-2BW (Narayanan et al. 2021, arXiv 2006.09503): 1F1B that is never flushed.

The first forward passes of an iteration run between the last backward passes of the one before, so
stages alternate all the time and there is no bubble. Gradients are those of the weights of the
iteration before. Two versions of the weights are enough if an iteration has at least as many
microbatches as stages: those of the passes that run, and those that the optimizer writes.

PipeDream-Flush, of the same paper, is `1f1b`.
"""

from __future__ import annotations

from simtrain.schedules.warmup import WarmupFamily


class PipeDream2BW(WarmupFamily):
    """The order of 1F1B; `iteration.programs.unflushed` runs iterations into each other."""

    name = "pipedream_2bw"
    flushes = False

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return one forward for each later stage."""
        return min(p - rank - 1, n)
