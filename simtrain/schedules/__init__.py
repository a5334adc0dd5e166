"""In which order each stage acts, and what ranks exchange between their actions."""

from simtrain.schedules.actions import KINDS, Action, Kind
from simtrain.schedules.exchanges import (
    Exchange,
    Message,
    Messages,
    Moments,
    Step,
    asynchronous_moments,
    blocking_moments,
    blocking_steps,
)
from simtrain.schedules.orders import (
    build,
    gpipe,
    interleaved,
    num_warmup_forwards,
    one_f_one_b,
)
from simtrain.schedules.schedule import Schedule, ScheduleName
from simtrain.schedules.window import kept_actions, most_outstanding

__all__ = [
    "KINDS",
    "Action",
    "Exchange",
    "Kind",
    "Message",
    "Messages",
    "Moments",
    "Schedule",
    "ScheduleName",
    "Step",
    "asynchronous_moments",
    "blocking_moments",
    "blocking_steps",
    "build",
    "gpipe",
    "interleaved",
    "kept_actions",
    "most_outstanding",
    "num_warmup_forwards",
    "one_f_one_b",
]
