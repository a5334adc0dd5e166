"""Seq1F1B (Sun et al. 2024, arXiv 2406.03488): 1F1B whose passes run slices of each sequence.

A microbatch's forward passes run its slices first to last, its backward passes last to first: the
causal attention of a slice reads the keys and values of earlier slices, so their gradients are
complete after the backward passes of all later slices. A stage therefore begins with as many more
forward passes as a microbatch has further slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simtrain.errors import Problem
from simtrain.schedules.interleaved import Interleaved
from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.warmup import WarmupFamily


class SlicedFamily(WarmupFamily):
    """Schedules whose passes run slices of sequences.

    The methods of warm-up families count slices of all microbatches; `build` and
    `most_outstanding` count microbatches.
    """

    is_of_megatron = True
    cuts_sequences = True

    def build(self, p: int, m: int, n: int) -> Schedule:
        schedule = super().build(p, m, n * self.options.num_slices)
        return replace(schedule, num_slices=self.options.num_slices)

    def backward_numbers(self, forward: Ints) -> Ints:
        """Return the slices of backward passes: those of each microbatch last to first.

        Source: `sequence_1f1b_queue` of the authors' code.
        """
        num_slices = self.options.num_slices
        number: Ints = forward + num_slices - 1 - 2 * (forward % num_slices)
        return number

    def most_outstanding(self, p: int, m: int, n: int) -> int:
        return super().most_outstanding(p, m, n * self.options.num_slices)


class Seq1F1B(SlicedFamily):
    """`forward_backward_pipelining_without_interleaving` of the authors' Megatron-LM."""

    name = "seq1f1b"

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return min(p - rank - 2 + self.options.num_slices, n)


class Seq1F1BInterleaved(SlicedFamily, Interleaved):
    """`forward_backward_pipelining_with_interleaving` of the authors' Megatron-LM (Seq1F1B-I).

    Each chunk runs p slices in turn. All slices of a microbatch are in the same turn, so s divides
    p: otherwise the first backward pass of some microbatch would not be that of its last slice.
    """

    name = "seq1f1b_interleaved"
    torch_names = ()
    chooses_groups = False
    can_merge = False

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return those of interleaved 1F1B, and all slices but one."""
        return min(2 * (p - rank - 1) + (m - 1) * p + self.options.num_slices - 1, m * n)

    def problems(self, p: int, m: int, n: int) -> Iterator[Problem]:
        yield from super().problems(p, m, n)
        if p > 0 and p % self.options.num_slices:
            yield Problem(
                "E458",
                f"schedule {self.name} of {self.options.num_slices} slices on {p} stages",
                reason="each chunk runs as many slices in turn as there are stages, and all slices "
                "of a microbatch in the same turn",
                fix="use a number of slices that divides the number of stages",
            )
