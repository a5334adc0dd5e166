"""TeraPipe (Li et al. 2021, arXiv 2102.07988): GPipe whose passes run slices of each sequence.

All forward passes run slice by slice, then all backward passes; those of a microbatch run its
slices last to first, because causal attention gives the keys of a slice gradients of all later
ones (Section 3.2).
"""

from __future__ import annotations

from simtrain.schedules.one_f_one_b import SlicedFamily


class TeraPipe(SlicedFamily):
    """All forwards, then all backwards, of slices: `gpipe` on slices of sequences."""

    name = "terapipe"
    is_of_megatron = False

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return n
