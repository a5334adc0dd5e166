"""1F1B (Narayanan et al. 2021): one forward pass, then one backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.errors import Problem
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
        """Return one forward for each later stage."""
        return min(p - rank - 1 + self.options.merges, n)
