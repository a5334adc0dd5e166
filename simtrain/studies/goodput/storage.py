"""A storage whose bandwidth other jobs share, as a queue that serves all transfers at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """A storage that n transfers use at once gives each 1/n of its bandwidth.

    Transfers of other jobs begin at random, and their sizes are exponential: M/M/1 with processor
    sharing. A transfer of a certain size then takes 1/(1 - load) times as long as alone in the
    mean, whatever the sizes of the others (Kleinrock 1976, Queueing Systems 2, Section 4.4).

    Args:
        load: share of the time for which transfers of others would use all of the bandwidth.
        others_s: mean time of one of them, if it had the storage alone.
    """

    load: float
    others_s: float

    def mean_s(self, alone_s: float) -> float:
        """Return the mean time of a transfer, given its time alone."""
        return alone_s / (1 - self.load)

    def draw_s(self, alone_s: float, rng: np.random.Generator) -> float:
        """Draw the time of a transfer that begins at any moment."""
        others = int(rng.geometric(1 - self.load)) - 1
        left_s, time_s, begin_per_s = alone_s, 0.0, self.load / self.others_s
        while True:
            end_per_s = others / (others + 1) / self.others_s
            done_s = left_s * (others + 1)
            rate = begin_per_s + end_per_s
            step_s = rng.exponential(1 / rate) if rate else done_s
            if step_s >= done_s:
                return time_s + done_s
            time_s += step_s
            left_s -= step_s / (others + 1)
            others += 1 if rng.random() * rate < begin_per_s else -1
