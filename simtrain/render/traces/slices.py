"""Words of traces: threads, kinds of slices, slices and arrows."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.engine.compiled import Floats
from simtrain.iteration.programs.pass_tasks import HOST, STREAMS
from simtrain.iteration.programs.streams import EMBEDDING, MODEL
from simtrain.iteration.report.spans import StageStream

Nanoseconds: TypeAlias = NDArray[np.int64]

_OF_STAGE = {
    StageStream.OWN: "stage",
    StageStream.SENDS_FORWARD: "sends forward",
    StageStream.RECEIVES_FORWARD: "receives forward",
    StageStream.SENDS_BACKWARD: "sends backward",
    StageStream.RECEIVES_BACKWARD: "receives backward",
    StageStream.BUCKETS: "gradient and parameter buckets",
    StageStream.TO_HOST: "copies to host",
    StageStream.FROM_HOST: "copies from host",
    StageStream.HOST: "update on the host",
    StageStream.NVME_READS: "reads of the update",
    StageStream.NVME_WRITES: "writes of the update",
}
_SHARED = {
    StageStream.EMBEDDING: EMBEDDING,
    StageStream.MODEL: MODEL,
}
THREADS = (*_OF_STAGE.values(), *STREAMS, *_SHARED.values())
"""Threads of a rank by number: of its stage, inside passes, and shared by several stages."""
_NAMES = _OF_STAGE | _SHARED
THREAD_OF = np.array([THREADS.index(_NAMES[stream]) for stream in StageStream], np.int32)
"""[streams of a stage], the thread of each."""
STAGE_THREAD, HOST_THREAD = THREADS.index(_NAMES[StageStream.OWN]), THREADS.index(HOST)
PASS_THREADS = [THREADS.index(name) for name in STREAMS]
_SENDS = [StageStream.SENDS_FORWARD, StageStream.SENDS_BACKWARD]
SEND_THREADS: list[int] = THREAD_OF[_SENDS].tolist()


def nanoseconds(seconds: Floats) -> Nanoseconds:
    """Round seconds to integer nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


class SliceKind(Enum):
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
    kind: SliceKind
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
