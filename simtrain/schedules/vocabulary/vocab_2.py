"""Vocab-2: one barrier, with input gradients in the first pass (Yeung et al. 2024, Algorithm 2)."""

from __future__ import annotations

import numpy as np

from simtrain.schedules.schedule import Ints
from simtrain.schedules.vocabulary.split import VocabularySplit


class Vocab2(VocabularySplit):
    """The first pass computes input gradients too; the second one only weight gradients."""

    name = "vocab_2"
    summary = "computes input gradients before its only barrier, one more microbatch in flight"
    num_intervals = 1
    has_early_gradient = True

    def second_pass_times(self, ends: Ints, starts: Ints) -> Ints:
        """Return the time of the next microbatch's first pass."""
        return np.append(ends[1:], max(ends[-1], starts[-1]))
