"""All schedules. A new one is a class in a file of its own and a line here, or a plug-in of another
package (`base/plug_ins.py`).
"""

from __future__ import annotations

from simtrain.base.plug_ins import Parts
from simtrain.schedules.chimera import Chimera, ChimeraDouble
from simtrain.schedules.custom import Custom
from simtrain.schedules.dualpipe import DualPipe
from simtrain.schedules.dualpipev import DualPipeV
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.gpipe import GPipe
from simtrain.schedules.grouped_interleaving import Gis, GisH
from simtrain.schedules.hanayo import Hanayo
from simtrain.schedules.interleaved import Interleaved
from simtrain.schedules.looped_bfs import LoopedBfs
from simtrain.schedules.one_f_one_b import OneFOneB
from simtrain.schedules.order import Order
from simtrain.schedules.order_options import NO_OPTIONS, OrderOptions
from simtrain.schedules.pipedream_2bw import PipeDream2BW
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.seq1f1b import Seq1F1B, Seq1F1BInterleaved
from simtrain.schedules.terapipe import TeraPipe
from simtrain.schedules.v_shaped import VHalf, VMin
from simtrain.schedules.zb1p import Zb1p
from simtrain.schedules.zb_h1 import ZbH1
from simtrain.schedules.zb_h2 import ZbH2
from simtrain.schedules.zbv import Zbv

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
    Chimera(),
    ChimeraDouble(),
    Hanayo(),
    PipeDream2BW(),
    Seq1F1B(),
    Seq1F1BInterleaved(),
    TeraPipe(),
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
