"""All schedules. A new one is a class in a file of its own and a line here, or a plug-in of another
package (`base/plug_ins.py`).
"""

from __future__ import annotations

from simtrain.base.plug_ins import Parts
from simtrain.schedules.dualpipe import DualPipe, DualPipeV
from simtrain.schedules.family import Custom, ScheduleFamily
from simtrain.schedules.interleaved import Gis, GisH, Interleaved
from simtrain.schedules.one_f_one_b import GPipe, LoopedBfs, OneFOneB, PipeDream2BW
from simtrain.schedules.order import NO_OPTIONS, Order, OrderOptions
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.seq1f1b import Seq1F1B, Seq1F1BInterleaved
from simtrain.schedules.v_shaped import VHalf, VMin, Zbv
from simtrain.schedules.zero_bubble import Zb1p, ZbH1, ZbH2

_HOUSE: tuple[ScheduleFamily, ...] = (
    OneFOneB(),
    GPipe(),
    Interleaved(),
    LoopedBfs(),
    ZbH1(),
    ZbH2(),
    Zb1p(),
    Zbv(),
    VHalf(),
    VMin(),
    Gis(),
    GisH(),
    DualPipeV(),
    DualPipe(),
    PipeDream2BW(),
    Seq1F1B(),
    Seq1F1BInterleaved(),
)
FAMILIES = Parts[ScheduleFamily]("schedules", ScheduleFamily, _HOUSE, [Custom()])
"""The schedules by name. The first with one chunk per stage, and the first with several, are the
defaults. Of equal orders in a file, the first gives the name.
"""
NAMED = Parts[ScheduleFamily]("schedules", ScheduleFamily, _HOUSE)
"""The schedules that a scenario can name."""


def default_name(num_chunks: int) -> str:
    """Return the schedule that a scenario with so many chunks per stage has by default."""
    has_chunks = num_chunks > 1
    return next(family.name for family in NAMED.values() if family.has_chunks is has_chunks)


def family_of(schedule: Schedule) -> ScheduleFamily:
    """Return the family of a schedule, with its groups, its slices and its merged passes."""
    if schedule.name == Custom.name:
        return Custom(actions=schedule)
    merges = schedule.merges is not None
    options = OrderOptions(schedule.group_size, merges, schedule.num_slices)
    return FAMILIES[schedule.name].with_options(options)


def build(name: str, p: int, m: int, n: int, options: OrderOptions = NO_OPTIONS) -> Schedule:
    """Build the named schedule on p stages with m chunks per stage and n microbatches.

    Options that the schedule does not have are left out.

    Raises:
        InputError: the schedule does not have these sizes (E411 to E413, E430, E458).
    """
    return Order(NAMED[name].with_options(options), p, m, n).actions


def gpipe(p: int, n: int) -> Schedule:
    """Run all n forwards, then all n backwards, on p stages. Raises InputError (E411)."""
    return build(GPipe.name, p, 1, n)


def one_f_one_b(p: int, n: int) -> Schedule:
    """Return 1F1B of n microbatches on p stages. Raises InputError (E411)."""
    return build(OneFOneB.name, p, 1, n)


def interleaved(p: int, m: int, n: int) -> Schedule:
    """Return interleaved 1F1B. Raises InputError (E411, or E413 when p does not divide n)."""
    return build(Interleaved.name, p, m, n)
