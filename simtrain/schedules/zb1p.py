"""ZB1P (Qi et al. 2024): 1F1B or interleaved 1F1B whose weight gradients fill bubbles."""

from __future__ import annotations

from simtrain.schedules.split_warmup import SplitWarmupFamily


class Zb1p(SplitWarmupFamily):
    """PyTorch's `ScheduleInterleavedZeroBubble`; with one chunk per stage, ZB1P.

    Microbatches run in rounds of equal size, at least p each if there are so many.
    """

    name = "zb1p"
    most_chunks = None
    torch_names = ("interleavedzerobubble",)

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        """Return a round of each chunk but one, and one forward for each later stage."""
        return min((m - 1) * self.group_of(p, n) + p - rank - 1, m * n)

    def weight_delay(self, rank: int, p: int) -> int:
        """Return one for each earlier stage."""
        return rank

    def group_of(self, p: int, n: int) -> int:
        """Return the microbatches of a round."""
        return n // _rounds(p, n)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        """Return why rounds of chunks differ in size."""
        rounds = _rounds(p, n)
        is_uneven = m > 1 and n % rounds
        return f"each chunk runs microbatches in {rounds} equal rounds" if is_uneven else ""


def _rounds(p: int, n: int) -> int:
    return max(1, n // p)
