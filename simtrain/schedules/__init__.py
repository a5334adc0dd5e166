"""Pipeline schedules: the order of each rank's actions, and the messages between ranks."""

from simtrain.scenario import ScheduleName
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
)
from simtrain.schedules.orders import (
    build,
    gpipe,
    interleaved,
    num_warmup_forwards,
    one_f_one_b,
)
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.slots import time_slots
from simtrain.schedules.window import most_outstanding, save_all_actions

__all__ = [
    "KINDS",
    "Action",
    "Exchange",
    "ExchangeSlots",
    "Kind",
    "Message",
    "Messages",
    "Schedule",
    "ScheduleName",
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
    "save_all_actions",
    "time_slots",
]
