"""A schedule that tests add: 1F1B on a V-shaped placement (Qi et al. 2024)."""

from simtrain.schedules.actions import Action
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth


class VShaped(ScheduleFamily):
    """Each rank runs a backward pass when it can, otherwise a forward pass.

    A rank starts microbatches while fewer than 2p of its forward passes wait for their backward
    pass: p microbatches on two chunks, as 1F1B's first rank.
    """

    name = "v_shaped"
    fewest_chunks = most_chunks = 2

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return ranks 0 to p - 1, then p - 1 to 0."""
        return back_and_forth(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order in which ready passes run if each takes one time slot."""
        placement = self.placement(p, m)
        ranks: list[list[Action]] = [[] for _ in range(p)]
        waiting = [0] * p
        ready = {Action(0, "F", microbatch) for microbatch in range(n)}
        while ready:
            starting = []
            for rank in range(p):
                choice = [
                    action
                    for action in ready
                    if placement.ranks[action.virtual_stage] == rank
                    and (action.kind == "B" or action.virtual_stage >= p or waiting[rank] < 2 * p)
                ]
                if choice:
                    # Backward before forward, the second chunk before the first, in order.
                    starting.append(min(choice, key=lambda a: (a.kind, -a[0], a.microbatch)))
            for action in starting:
                rank = placement.ranks[action.virtual_stage]
                ranks[rank].append(action)
                waiting[rank] += 1 if action.kind == "F" else -1
                ready.remove(action)
                ready |= following(action, 2 * p - 1)
        return Schedule.of(self.name, placement, n, ranks)


def following(action: Action, last: int) -> set[Action]:
    """Return the pass that needs an action's result; `last` is the last virtual stage."""
    virtual_stage, kind, microbatch = action
    if kind == "F" and virtual_stage == last:
        return {Action(last, "B", microbatch)}
    virtual_stage += 1 if kind == "F" else -1
    return {Action(virtual_stage, kind, microbatch)} if virtual_stage >= 0 else set()
