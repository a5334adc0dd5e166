"""1F1B (Narayanan et al. 2021): one forward pass, then one backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.errors import Problem
from simtrain.schedules.actions import Action
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.warmup import WarmupFamily


class OneFOneB(WarmupFamily):
    """Megatron-LM's `forward_backward_pipelining_without_interleaving`.

    With one stage this is `forward_backward_no_pipelining`: F0 B0 F1 B1 ... Only one stage can
    merge passes: F0 F1&B0 F2&B1 ... (`combined_1f1b_schedule_for_no_pipelining`).
    """

    name = "1f1b"
    is_of_megatron = True
    torch_names = ("1f1b",)
    can_merge = True

    def problems(self, p: int, m: int, n: int) -> Iterator[Problem]:
        yield from super().problems(p, m, n)
        if self.options.merges and p > 1:
            yield Problem(
                "E430",
                f"schedule {self.name} with merged passes on {p} stages",
                reason="Megatron-LM merges passes of interleaved stages, and without a pipeline",
                fix="use the interleaved schedule, or one stage",
            )

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return min(p - rank - 1 + self.options.merges, n)


# ------------------------------------------------------------------------------
# GPipe (Huang et al. 2019): all forward passes, then all backward passes.


class GPipe(WarmupFamily):
    """All forwards, then all backwards: 1F1B that stays in its warm-up."""

    name = "gpipe"
    is_of_megatron = True
    torch_names = ("gpipe",)

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return n


# ------------------------------------------------------------------------------
# PipeDream-2BW (Narayanan et al. 2021, arXiv 2006.09503): 1F1B that is never flushed.
#
# The first forward passes of an iteration run between the last backward passes of the one before,
# so stages alternate all the time and there is no bubble. Gradients are those of the weights of
# the iteration before. Two versions of the weights are enough if an iteration has at least as
# many microbatches as stages: those of the passes that run, and those that the optimizer writes.
#
# PipeDream-Flush, of the same paper, is `1f1b`.


class PipeDream2BW(WarmupFamily):
    """The order of 1F1B; `iteration.programs.unflushed` runs iterations into each other."""

    name = "pipedream_2bw"
    flushes = False

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return min(p - rank - 1, n)


# ------------------------------------------------------------------------------
# Breadth-first pipeline (Lamy-Poirier 2022): all microbatches on a chunk, then the next chunk.


class LoopedBfs(ScheduleFamily):
    """PyTorch's `ScheduleLoopedBFS`: backward passes run in the opposite order of the forwards."""

    name = "looped_bfs"
    most_chunks = None
    torch_names = ("loopedbfs",)

    def build(self, p: int, m: int, n: int) -> Schedule:
        placement, ranks = self.placement(p, m), []
        for stages in placement.virtual_stages:
            forwards = [Action(stage, "F", number) for stage in stages for number in range(n)]
            ranks.append([*forwards, *(action._replace(kind="B") for action in forwards[::-1])])
        return Schedule.of(self.name, placement, n, ranks)
