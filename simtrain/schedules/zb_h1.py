"""ZB-H1 (Qi et al. 2023): 1F1B whose late weight gradients fill the bubble at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from simtrain.schedules.actions import Action
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.one_f_one_b import OneFOneB
from simtrain.schedules.schedule import Schedule


class ZbH1(ScheduleFamily):
    """1F1B in which rank r delays the weight gradients of its first r microbatches.

    It splits only the backward passes whose halves are apart, and those of the cool-down. Source:
    the quick-start patch of sail-sg's zero-bubble repository (`schedules.py`).
    """

    name = "zb_h1"
    validates_steps = True

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
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
