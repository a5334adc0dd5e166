"""Vocab-1: two barriers, with an online softmax (Yeung et al. 2024, Algorithm 1)."""

from __future__ import annotations

import numpy as np

from simtrain.schedules.schedule import Ints
from simtrain.schedules.vocabulary.split import VocabularySplit


class Vocab1(VocabularySplit):
    """The second pass computes both gradients, and the input gradients are summed after it."""

    name = "vocab_1"
    summary = "overlaps both barriers with passes of other microbatches, two more in flight"
    num_intervals = 2

    def second_pass_times(self, ends: Ints, starts: Ints) -> Ints:
        """Return the start of the backward pass before that of the same microbatch."""
        # The first one runs with the first pass of the second microbatch.
        before = np.append(ends[min(1, len(ends) - 1)], starts[:-1])
        times: Ints = np.minimum(np.maximum(before, ends), starts)
        return times
