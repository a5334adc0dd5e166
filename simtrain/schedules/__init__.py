"""Pipeline schedules: the order of each rank's actions, and the messages between ranks."""

from simtrain.base.input_file import FileVersion
from simtrain.schedules.actions import KINDS, Action, Cell, Kind, MergedActions, actions_of
from simtrain.schedules.blocking import (
    blocking_slots,
    blocking_steps,
    shape_slots,
    stages_that_wait,
    waiting_stages,
)
from simtrain.schedules.exchanges import (
    Exchange,
    ExchangeSlots,
    Message,
    Messages,
    Step,
    asynchronous_slots,
    time_slots,
)
from simtrain.schedules.family import Custom, ScheduleFamily
from simtrain.schedules.files import read_schedule
from simtrain.schedules.order import Order, OrderOptions
from simtrain.schedules.partial_recompute import most_outstanding, save_all_actions
from simtrain.schedules.registry import (
    FAMILIES,
    NAMED,
    build,
    default_name,
    family_of,
    gpipe,
    interleaved,
    one_f_one_b,
)
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, back_and_forth, looped

__all__ = [
    "FAMILIES",
    "KINDS",
    "NAMED",
    "Action",
    "Cell",
    "Custom",
    "Exchange",
    "ExchangeSlots",
    "FileVersion",
    "Kind",
    "MergedActions",
    "Message",
    "Messages",
    "Order",
    "OrderOptions",
    "Schedule",
    "ScheduleFamily",
    "StagePlacement",
    "Step",
    "actions_of",
    "asynchronous_slots",
    "back_and_forth",
    "blocking_slots",
    "blocking_steps",
    "build",
    "default_name",
    "family_of",
    "gpipe",
    "interleaved",
    "looped",
    "most_outstanding",
    "one_f_one_b",
    "read_schedule",
    "save_all_actions",
    "shape_slots",
    "stages_that_wait",
    "time_slots",
    "waiting_stages",
]
