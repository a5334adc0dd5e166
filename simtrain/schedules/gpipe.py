"""GPipe (Huang et al. 2019): all forward passes, then all backward passes."""

from __future__ import annotations

from simtrain.schedules.warmup import WarmupFamily


class GPipe(WarmupFamily):
    """All forwards, then all backwards: 1F1B that stays in its warm-up."""

    name = "gpipe"
    is_of_megatron = True
    torch_names = ("gpipe",)

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return all forwards."""
        return n
