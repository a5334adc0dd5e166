"""The tokens of each slice into which a schedule cuts every sequence."""

from __future__ import annotations

import math

from simtrain.scenario import Scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.ops import total_flops
from simtrain.workload.segments import BlockRun, forward_segment
from simtrain.workload.tape import Microbatch
from simtrain.workload.work import FusedAttention


def slice_lengths(scenario: Scenario, model: Chunk, whole: Microbatch) -> tuple[int, ...]:
    """Return the tokens of each slice of a scenario's sequences, first to last.

    Args:
        scenario: a legal one.
        model: all blocks.
        whole: the hidden states of whole sequences.
    """
    split, length = scenario.parallelism, scenario.model.seq_length
    if split.slice_lengths is not None:
        return split.slice_lengths
    if split.slice_balance == "tokens":
        return (length // split.sequence_slices,) * split.sequence_slices
    linear, attention = _forward_flops(model, whole)
    return balanced_lengths(length, split.sequence_slices, scenario.slice_unit, linear, attention)


def balanced_lengths(
    length: int, num_slices: int, unit: int, linear: float, attention: float
) -> tuple[int, ...]:
    """Cut a sequence into slices of about equally many FLOPs (computation-wise partition).

    The first T of `length` tokens take linear · T / length + attention · (T / length)² FLOPs, if
    queries attend to earlier keys only.

    Args:
        length: tokens of the sequence.
        num_slices: number of slices.
        unit: each slice has a multiple of so many tokens.
        linear, attention: forward FLOPs of a whole sequence without the core of attention, and of
            the core.

    Each slice but the first is rounded down, from the last one on, as in the authors' `solver` (Sun
    et al. 2024, Section 3.4).
    """
    share_of_slice = (linear + attention) / num_slices
    lengths: list[int] = []
    end = length
    for _ in range(num_slices - 1):
        share = end / length
        before = linear * share + attention * share**2 - share_of_slice
        # The positive root, in a form that also holds without attention.
        root = 2 * before / (linear + math.sqrt(linear**2 + 4 * attention * before))
        tokens = end - length * root
        lengths.insert(0, int(tokens / unit) * unit)
        end -= lengths[0]
    return (end, *lengths)


def _forward_flops(model: Chunk, whole: Microbatch) -> tuple[int, int]:
    """Return the forward FLOPs without the core of attention, and those of the core."""
    linear = attention = 0
    for block, times in model.runs:
        for op in forward_segment(BlockRun(block, whole, OverlapPolicy())).ops:
            flops = times * total_flops((op,))
            if isinstance(op.work, FusedAttention):
                attention += flops
            else:
                linear += flops
    return linear, attention
