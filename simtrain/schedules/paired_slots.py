"""Orders in slots of equal passes, of which a walk over the stages leaves every other one free.

With passes of one slot, microbatch k of a unit runs forward on stage s of S in slot 2k + s, and
backward in slot 2k + 2S - 1 - s. On each rank these slots are all even or all odd. The passes of a
walk in the opposite direction fill the others: those of a second copy of the model (Chimera), or
those of the same microbatches on their way back (Hanayo). The next unit starts 2S slots later and
fills the slots that this one leaves free at its end.

Sources: Li and Hoefler 2021 (arXiv 2107.06925), Sections 3.1 and 3.5 ("direct concatenation" of
units); Liu et al. 2023 (arXiv 2308.15762), whose waves have the same slots.
"""

from __future__ import annotations

from collections import defaultdict

from simtrain.schedules.actions import Action
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement


def paired_slots(
    name: str, placement: StagePlacement, n: int, unit: int, *, together: int = 1
) -> Schedule:
    """Return the order of n microbatches.

    Args:
        name: of the schedule.
        placement: walks from one end of the pipeline to the other.
        n: number of microbatches, of all copies of the model.
        unit: slots of each copy in a unit, forward and backward; the last unit may have fewer.
        together: microbatches that follow each other in a slot.
    """
    num_slots, ranks = 2 * placement.stages_per_copy, []
    for stages in placement.virtual_stages:
        slots: defaultdict[int, list[Action]] = defaultdict(list)
        for stage in stages:
            place = stage % placement.stages_per_copy
            for number, microbatch in enumerate(placement.microbatches(stage, n)):
                slot = number // together
                start = num_slots * (slot // unit) + 2 * (slot % unit)
                slots[start + place].append(Action(stage, "F", microbatch))
                slots[start + num_slots - 1 - place].append(Action(stage, "B", microbatch))
        ranks.append([action for slot in sorted(slots) for action in slots[slot]])
    return Schedule.of(name, placement, n, ranks)
