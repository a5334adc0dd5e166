"""Words of traces: threads, kinds of slices, slices and arrows."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.engine.compiled import Floats
from simtrain.iteration.programs.pass_tasks import HOST, STREAMS
from simtrain.iteration.programs.streams import SHARED

Nanoseconds: TypeAlias = NDArray[np.int64]

STAGE, SENDS, RECEIVES = "stage", "sends", "receives"
GROUPS = (
    # For each group of streams (programs/streams.py): threads, and steps along the ring of stages
    # from the stream's stage to the thread's. Forward is towards the next stage.
    ((0, STAGE),),
    ((0, f"{SENDS} forward"), (1, f"{RECEIVES} forward")),
    ((0, f"{SENDS} backward"), (-1, f"{RECEIVES} backward")),
    ((0, "gradient and parameter buckets"),),
    ((0, "copies to host"),),
    ((0, "copies from host"),),
)
_OF_STAGE = [name for group in GROUPS for _, name in group]
THREADS = (*_OF_STAGE, *STREAMS, *SHARED)
"""Threads of a rank by number: of its stage, inside passes, and shared by several stages."""
STAGE_THREAD, HOST_THREAD = THREADS.index(STAGE), THREADS.index(HOST)
PASS_THREADS = [THREADS.index(name) for name in STREAMS]
SEND_THREADS = [number for number, name in enumerate(THREADS) if name.startswith(SENDS)]


def nanoseconds(seconds: Floats) -> Nanoseconds:
    """Round seconds to integer nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


class Kind(Enum):
    """Kind of a slice: work of the GPU, work of the host, or a pass.

    A copy is a kernel on a stream of collectives: it copies, casts or adds what they exchange.
    """

    KERNEL = "kernel"
    COLLECTIVE = "collective"
    COPY = "copy"
    LAUNCH = "launch"
    HOST_WORK = "host work"
    PASS = "pass"


class Slice(NamedTuple):
    """A task of the iteration, or work inside a pass.

    Args:
        thread: index into `THREADS`.
        number: task of the iteration, or a number above all tasks. A kernel and its launch share a
            number.
        collective: what a collective inside a pass does, and on how many ranks; None for others.
    """

    thread: int
    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    number: int
    collective: tuple[str, int] | None = None


class Arrow(NamedTuple):
    """Arrow from a transfer to the pass that waits for it.

    Args:
        transfer, consumer: tasks of the iteration. If buckets cut the pass, its first task.
        thread: thread of the transfer on the sender's rank.
        receiver: stage of the consumer.
        start_ns, end_ns: start of the transfer, and start of the consumer.
    """

    transfer: int
    consumer: int
    thread: int
    receiver: int
    start_ns: int
    end_ns: int
