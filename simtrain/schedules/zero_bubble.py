"""ZB-H1 (Qi et al. 2023): 1F1B whose late weight gradients fill the bubble at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from simtrain.schedules.actions import Action
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.one_f_one_b import OneFOneB
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.warmup import SplitWarmupFamily


class ZbH1(ScheduleFamily):
    """1F1B in which rank r delays the weight gradients of its first r microbatches.

    It splits only the backward passes whose halves are apart, and those of the cool-down. Source:
    the quick-start patch of sail-sg's zero-bubble repository (`schedules.py`).
    """

    name = "zb_h1"
    validates_steps = True

    def build(self, p: int, m: int, n: int) -> Schedule:
        ranks = OneFOneB().build(p, m, n).ranks
        split = [ranks[0], *([*_split(actions, r)] for r, actions in enumerate(ranks[1:], 1))]
        return Schedule.of(self.name, self.placement(p, m), n, split)


def _split(actions: Sequence[Action], rank: int) -> Iterator[Action]:
    """Yield the actions of 1F1B on a rank, with split backward passes."""
    last_forward = max(place for place, action in enumerate(actions) if action.kind == "F")
    waiting: deque[Action] = deque()
    for place, action in enumerate(actions):
        number, is_steady = action.microbatch, place <= last_forward
        if action.kind == "F" or (number >= rank and is_steady):
            yield action
            continue
        yield action._replace(kind="I")
        waiting.append(action._replace(kind="W"))
        if number >= rank and not is_steady:
            yield waiting.popleft()
    yield from waiting


# ------------------------------------------------------------------------------
# ZB-H2 (Qi et al. 2023): more warm-up forwards than 1F1B, and no bubble with equal passes.


class ZbH2(SplitWarmupFamily):
    """Two warm-up forwards per later stage, and two waiting weight gradients per earlier stage.

    Every stage holds up to 2p - 1 microbatches. Stages start and end one after the other, so the
    idle time is at the ends of an iteration.
    """

    name = "zb_h2"

    def num_warmup_forwards(self, rank: int, p: int, m: int, n: int) -> int:
        return min(2 * (p - rank - 1), n)

    def weight_delay(self, rank: int, p: int) -> int:
        return 2 * rank


# ------------------------------------------------------------------------------
# ZB1P (Qi et al. 2024): 1F1B or interleaved 1F1B whose weight gradients fill bubbles.


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
        return rank

    def group_of(self, p: int, n: int) -> int:
        return n // _rounds(p, n)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        rounds = _rounds(p, n)
        is_uneven = m > 1 and n % rounds
        return f"each chunk runs microbatches in {rounds} equal rounds" if is_uneven else ""


def _rounds(p: int, n: int) -> int:
    return max(1, n // p)
