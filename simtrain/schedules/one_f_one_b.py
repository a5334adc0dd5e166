"""1F1B (Narayanan et al. 2021): one forward pass, then one backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.errors import Problem
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement
from simtrain.schedules.vocabulary.passes import with_chunks, with_passes
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
    splits_vocabulary = True

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return one virtual stage per rank, and the vocabulary's, if they split it."""
        return with_chunks(super().placement(p, m), self.options.vocabulary)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        return with_passes(super().build(p, m, n), self.options.vocabulary)

    def problems(self, p: int, m: int, n: int) -> Iterator[Problem]:
        """Yield why no schedule has these sizes; several stages do not merge passes (E430)."""
        yield from super().problems(p, m, n)
        if self.options.merges and p > 1:
            yield Problem(
                "E430",
                f"schedule {self.name} with merged passes on {p} stages",
                reason="Megatron-LM merges passes of interleaved stages, and without a pipeline",
                fix="use the interleaved schedule, or one stage",
            )

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return one forward for each later stage, and more with a split vocabulary."""
        later = p - rank - 1
        more = self.options.vocabulary.more_forwards(later) if self.options.vocabulary else 0
        return min(later + self.options.merges + more, n)
