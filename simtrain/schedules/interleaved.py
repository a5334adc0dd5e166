"""Interleaved 1F1B (Narayanan et al. 2021): several chunks per stage run groups of microbatches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simtrain.schedules.actions import KINDS
from simtrain.schedules.exchanges import ExchangeSlots, Messages, slots_of_blocks
from simtrain.schedules.warmup import WarmupFamily

_F = KINDS.index("F")


@dataclass(frozen=True)
class Interleaved(WarmupFamily):
    """Megatron-LM's `forward_backward_pipelining_with_interleaving`: groups of p microbatches.

    With merged passes, `combined_1f1b_schedule_for_interleaved_pipelining`.
    """

    merges: bool = False

    name = "interleaved"
    has_chunks = True
    exchanges_shapes = True
    reduces_by_chunk = True
    gathers_by_chunk = True
    torch_names = ("interleaved1f1b",)
    can_merge = True

    def merging(self) -> Interleaved:
        """Return the same schedules with merged passes."""
        return Interleaved(merges=True)

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return `get_pp_rank_microbatches` of Megatron-LM."""
        return min(2 * (p - rank - 1) + (m - 1) * p + self.merges, m * n)

    def group_size(self, p: int) -> int:
        """Return one microbatch per stage."""
        return p

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        """Return why p stages cannot run n microbatches; "" if they can."""
        return f"each chunk runs microbatches in groups of {p}, one per stage" if n % p else ""

    def blocking_slots(self, messages: Messages) -> ExchangeSlots:
        """Return slots in which one call after each block sends its outputs and receives the next
        block's inputs. In the steady phase a block is a forward and a backward, otherwise one
        action (`forward_backward_pipelining_with_interleaving` without overlap_p2p_comm).
        """
        schedule = messages.schedule
        place = np.arange(len(schedule.kind)) - schedule.rank_starts[schedule.rank]
        warmup, cooldown = self.phases(schedule)
        num_steady = np.clip(place, warmup, cooldown) - warmup
        return slots_of_blocks(messages, place - (num_steady + 1) // 2, np.True_)

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
        return ExchangeSlots(
            slots.starts, slots.action, slots.send, receive[messages.consumer].astype(np.int32)
        )
