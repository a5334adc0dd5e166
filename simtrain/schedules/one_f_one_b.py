"""1F1B (Narayanan et al. 2021): one forward pass, then one backward pass."""

from __future__ import annotations

from simtrain.schedules.warmup import WarmupFamily


class OneFOneB(WarmupFamily):
    """Megatron-LM's `forward_backward_pipelining_without_interleaving`.

    With one stage this is `forward_backward_no_pipelining`: F0 B0 F1 B1 ...
    """

    name = "1f1b"
    overlaps = False
    alternates = True
    torch_names = ("1f1b",)

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return one forward for each later stage."""
        return min(p - rank - 1, n)
