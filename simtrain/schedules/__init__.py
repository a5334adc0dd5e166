"""In which order each stage acts, and what ranks exchange between their actions."""

from simtrain.schedules.actions import Action, Kind
from simtrain.schedules.exchanges import (
    Exchange,
    Message,
    Step,
    asynchronous_messages,
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
from simtrain.schedules.window import kept_forwards, most_outstanding

__all__ = [
    "Action",
    "Exchange",
    "Kind",
    "Message",
    "Schedule",
    "ScheduleName",
    "Step",
    "asynchronous_messages",
    "blocking_steps",
    "build",
    "gpipe",
    "interleaved",
    "kept_forwards",
    "most_outstanding",
    "num_warmup_forwards",
    "one_f_one_b",
]
