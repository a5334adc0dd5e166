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
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth, two_directions


def paired_slots(name: str, placement: StagePlacement, n: int, unit: int) -> Schedule:
    """Return the order of n microbatches.

    Args:
        name: of the schedule.
        placement: walks from one end of the pipeline to the other.
        n: number of microbatches, of all copies of the model.
        unit: slots of each copy in a unit, forward and backward; the last unit may have fewer.
    """
    num_slots, ranks = 2 * placement.stages_per_copy, []
    for stages in placement.virtual_stages:
        slots: defaultdict[int, list[Action]] = defaultdict(list)
        for stage in stages:
            place = stage % placement.stages_per_copy
            for number, microbatch in enumerate(placement.microbatches(stage, n)):
                start = num_slots * (number // unit) + 2 * (number % unit)
                slots[start + place].append(Action(stage, "F", microbatch))
                slots[start + num_slots - 1 - place].append(Action(stage, "B", microbatch))
        ranks.append([action for slot in sorted(slots) for action in slots[slot]])
    return Schedule.of(name, placement, n, ranks)


# ------------------------------------------------------------------------------
# Chimera (Li and Hoefler 2021, arXiv 2107.06925): 1F1B from both ends of the pipeline.
#
# Two copies of the model run through the pipeline in opposite directions, each with half of the
# microbatches. Rank r has stage r of one copy and stage p - 1 - r of the other, and reduces their
# gradients with the rank that has them the other way round. With passes of F and B seconds, and K
# units of p microbatches, the bubble is (p - 2)(max(F, B) + (K - 1)|F - B|) seconds, and rank r
# keeps p/2 + 1 + min(r, p - 1 - r) microbatches of a stage (Table 2). Parameters are kept twice.


class Chimera(ScheduleFamily):
    """One pipeline in each direction; more of them are not simulated."""

    name = "chimera"

    def placement(self, p: int, m: int) -> StagePlacement:
        return two_directions(p, m)

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        if p % 2:
            return (
                f"{self.name} needs an even number of stages, or both directions meet in one slot"
            )
        return f"{self.name} runs half of the microbatches in each direction" if n % 2 else ""

    def build(self, p: int, m: int, n: int) -> Schedule:
        return paired_slots(self.name, self.placement(p, m), n, unit=p // 2)


# ------------------------------------------------------------------------------
# Hanayo (Liu et al. 2023, arXiv 2308.15762): waves over the pipeline, with one copy of the model.
#
# Chunks are placed on ranks 0 to p - 1 and back; each way there and back is a wave, so w waves
# have 2w chunks per stage. One wave on p ranks is one half of Chimera on 2p ranks. With passes of
# F and B seconds for a whole stage, and K units of p microbatches, the bubble is (p - 1)(max(F,
# B) + (K - 1)|F - B|)/w seconds, and rank r keeps (2w - 1)p + 1 + r microbatches of a chunk.


class Hanayo(ScheduleFamily):
    """Two chunks per stage and wave."""

    name = "hanayo"
    fewest_chunks, most_chunks = 2, None
    chunks_per_wave = 2

    def placement(self, p: int, m: int) -> StagePlacement:
        return back_and_forth(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        return paired_slots(self.name, self.placement(p, m), n, unit=p)
