"""Interleaved 1F1B (Narayanan et al. 2021): several chunks per stage run groups of microbatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.exchanges import ExchangeSlots, Messages, slots_of_blocks
from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.warmup import SplitWarmupFamily, WarmupFamily, first_microbatches

_F = KINDS.index("F")


class Interleaved(WarmupFamily):
    """Megatron-LM's `forward_backward_pipelining_with_interleaving`.

    With merged passes, `combined_1f1b_schedule_for_interleaved_pipelining`.

    A group has p microbatches, or as many as a scenario chooses (Megatron-LM's
    --microbatch-group-size-per-virtual-pipeline-stage). The last group may be smaller, but has at
    least p.
    """

    name = "interleaved"
    is_of_megatron = True
    fewest_chunks, most_chunks = 2, None
    torch_names: ClassVar[tuple[str, ...]] = ("interleaved1f1b",)
    chooses_groups = True
    can_merge = True

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        warmup = 2 * (p - rank - 1) + (m - 1) * self.group_of(p, n)
        return min(warmup + self.options.merges, m * n)

    def group_of(self, p: int, n: int) -> int:
        return self.options.group_size or p

    def group_sizes(self, p: int, m: int, n: int) -> Iterator[int]:
        return (size for size in range(p, n + 1) if self._allows_group(size, p, n))

    def _allows_group(self, size: int, p: int, n: int) -> bool:
        return p <= size <= n and not 0 < n % size < p

    def build(self, p: int, m: int, n: int) -> Schedule:
        return replace(super().build(p, m, n), group_size=self.options.group_size)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        size = self.group_of(p, n)
        if self._allows_group(size, p, n):
            return ""
        least = f", of which each has at least {p}, one per stage"
        return f"each chunk runs microbatches in groups of {size}{least * (size != p)}"

    def blocking_slots(self, messages: Messages) -> ExchangeSlots:
        """Return slots in which one call after each block sends its outputs and receives the next
        block's inputs. In the steady phase a block is a forward and a backward, otherwise one
        action (`forward_backward_pipelining_with_interleaving` without overlap_p2p_comm).
        """
        schedule = messages.schedule
        place = np.arange(len(schedule.kind)) - schedule.rank_starts[schedule.rank]
        warmup, cooldown = self.phases(schedule)
        num_steady = np.clip(place, warmup, cooldown) - warmup
        slots = slots_of_blocks(messages, place - (num_steady + 1) // 2, np.True_)
        return replace(slots, receive=(slots.action - 1)[_received_before(messages)])

    def shape_slots(self, messages: Messages) -> ExchangeSlots:
        """Return slots in which a blocking exchange of shapes precedes each transfer.

        After each action, a rank exchanges the shape of its output, and of its next input in the
        same direction. Its first input is received before all actions, its first gradient after
        the warm-up. Source: `forward_backward_pipelining_with_interleaving` with overlap_p2p_comm,
        where `P2PCommunicator._communicate` calls `_communicate_shapes` first.
        """
        schedule, rank = messages.schedule, messages.schedule.rank
        sizes = schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
        warmup, place = self._warmups(*sizes), schedule.cell
        # The block after which each action's input is exchanged; -1 for before all blocks.
        before = np.empty_like(place)
        for is_forward, first in ((True, np.full_like(warmup, -1)), (False, warmup - 1)):
            same = np.flatnonzero((schedule.kind == _F) == is_forward)
            before[same[1:]] = place[same[:-1]]
            begins = same[np.diff(rank[same], prepend=-1) > 0]
            before[begins] = first[rank[begins]]
        slots = slots_of_blocks(messages, place, np.False_)
        receive = slots.starts[rank] + np.where(before < 0, 0, 3 * before + 2)
        return replace(slots, receive=receive[_received_before(messages)].astype(np.int32))


def _received_before(messages: Messages) -> Ints:
    """Return [messages], the action of the receiver before which each message is received.

    It is the consumer, but for messages between the ends of the pipeline. The end that receives
    them is p - 1 passes ahead of the sender, so it receives each message p passes after the
    sender's one and keeps it until the next chunk's turn: groups of more than p microbatches need
    that buffer (`forward_backward_pipelining_with_interleaving`).
    """
    schedule, p = messages.schedule, messages.schedule.num_stages
    num_passes = schedule.num_chunks * schedule.num_microbatches
    # [backward or forward, rank, number of the pass], the action of each pass.
    passes = [np.flatnonzero((schedule.kind == _F) == is_forward) for is_forward in (False, True)]
    actions = np.stack(passes).reshape(2, p, num_passes)
    number = np.empty(len(schedule.kind), np.int32)
    number[actions] = np.arange(num_passes)
    forward, receiver = messages.goes_forward, messages.receiver
    is_wrapped = receiver == np.where(forward, 0, p - 1)
    following = np.minimum(number[messages.producer] + p, num_passes - 1)
    wrapped = actions[forward, receiver, following]
    received: Ints = np.where(is_wrapped, wrapped, messages.consumer)
    return received


# ------------------------------------------------------------------------------
# Interleaving strategies of PipeOffload (Wan et al. 2025): groups of few microbatches.


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
        return p

    def build(self, p: int, m: int, n: int) -> Schedule:
        group = self.group_of(p, n)
        return first_microbatches(super().build(p, m, -(-n // group) * group), n)


class GisH(Gis):
    """GIS-H: groups of half as many microbatches need less memory, with a longer bubble."""

    name = "gis_h"

    def group_of(self, p: int, n: int) -> int:
        return -(-p // 2)
