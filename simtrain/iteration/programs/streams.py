"""The streams of an iteration: groups with one stream per stage, and two that all stages share.

A stage computes on one stream and has a link to either neighbour on the ring of stages. Messages
are on the link to their receiver, in the order in which the stage sends them. Copies to the host
and back have a stream each, because PCIe and NVLink-C2C carry both directions at full speed. An
update of the host beside the passes has one for Adam, and one each for reads and writes of NVMe.
"""

from __future__ import annotations

import numpy as np

from simtrain.engine.compiled import Ints
from simtrain.schedules.stage_placement import ring_neighbour

COMPUTE, TO_NEXT, TO_PREVIOUS, BUCKETS, TO_HOST, FROM_HOST = range(6)
HOST, NVME_READS, NVME_WRITES, NUM_GROUPS = range(6, 10)
"""Groups of one stream per stage. Stream `group * num_stages + stage` is that of a stage."""
LINK_STEPS = np.array([0, 1, -1, 0, 0, 0, 0, 0, 0], np.int32)
"""[groups], step from the stage of a stream to the stage that receives its messages."""

SHARED = EMBEDDING, MODEL = "embedding", "model"
"""Streams with collectives over several stages, after the groups."""


def stream_names(num_stages: int) -> tuple[str, ...]:
    """Return the names of all streams."""
    return (
        *stage_streams(num_stages),
        *link_streams(num_stages, 1),
        *link_streams(num_stages, -1),
        *(f"data {stage}" for stage in range(num_stages)),
        *(f"to host {stage}" for stage in range(num_stages)),
        *(f"from host {stage}" for stage in range(num_stages)),
        *(f"host {stage}" for stage in range(num_stages)),
        *(f"NVMe reads {stage}" for stage in range(num_stages)),
        *(f"NVMe writes {stage}" for stage in range(num_stages)),
        *SHARED,
    )


def stage_streams(num_stages: int) -> list[str]:
    """Return the names of the stages' compute streams."""
    return [f"stage {stage}" for stage in range(num_stages)]


def link_streams(num_stages: int, step: int) -> list[str]:
    """Return the names of the links from each stage to the next (step 1) or previous one (-1).

    The wrap-around is a separate link, even between two stages: Megatron-LM gives it another
    communicator.
    """
    ends = [(stage, ring_neighbour(stage, step, num_stages)) for stage in range(num_stages)]
    return [f"{'link' if end == stage + step else 'wrap'} {stage}->{end}" for stage, end in ends]


def links_of_messages(sender: Ints, step: Ints, num_stages: int) -> Ints:
    """Return [messages], the link on which each sender sends along the ring."""
    links: Ints = np.where(step > 0, TO_NEXT, TO_PREVIOUS) * num_stages + sender
    return links
