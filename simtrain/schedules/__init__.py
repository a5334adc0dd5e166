"""Pipeline schedules: the order of each rank's actions, and the messages between ranks."""

from simtrain.schedules.actions import KINDS, Action, Kind
from simtrain.schedules.exchanges import (
    Exchange,
    ExchangeSlots,
    Message,
    Messages,
    Step,
    asynchronous_slots,
    blocking_slots,
    blocking_steps,
    shape_slots,
)
from simtrain.schedules.files import ScheduleVersion, read_schedule
from simtrain.schedules.named import SCHEDULES, NamedSchedule
from simtrain.schedules.names import OrderName, ScheduleName
from simtrain.schedules.orders import (
    build,
    gpipe,
    interleaved,
    num_warmup_forwards,
    one_f_one_b,
)
from simtrain.schedules.pipeline_order import PipelineOrder, schedule_of
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.slots import time_slots
from simtrain.schedules.window import most_outstanding, save_all_actions

__all__ = [
    "KINDS",
    "SCHEDULES",
    "Action",
    "Exchange",
    "ExchangeSlots",
    "Kind",
    "Message",
    "Messages",
    "NamedSchedule",
    "OrderName",
    "PipelineOrder",
    "Schedule",
    "ScheduleName",
    "ScheduleVersion",
    "Step",
    "asynchronous_slots",
    "blocking_slots",
    "blocking_steps",
    "build",
    "gpipe",
    "interleaved",
    "most_outstanding",
    "num_warmup_forwards",
    "one_f_one_b",
    "read_schedule",
    "save_all_actions",
    "schedule_of",
    "shape_slots",
    "time_slots",
]
