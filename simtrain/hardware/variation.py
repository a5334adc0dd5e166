"""How much durations vary on a cluster: between passes, between GPUs, and by rare pauses.

A profile without these entries takes those of h100_sxm (`simtrain run --draws`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simtrain.base.entry import Entry, Strict
from simtrain.scenario.variation_section import MOST_PAUSES
from simtrain.units import NonNegativeSeconds

Relative = Annotated[float, Field(ge=0, le=0.3)]


class PauseEntries(Strict):
    """Rare pauses of single GPUs.

    Args:
        per_gpu_hour: pauses per GPU and hour of computing.
        duration: mean duration; durations are exponential.
    """

    per_gpu_hour: Entry[Annotated[float, Field(ge=0, le=MOST_PAUSES)]]
    duration: Entry[NonNegativeSeconds]


class VariationEntries(Strict):
    """Standard deviations of durations, relative to their means, and pauses.

    Args:
        kernels: of the time of a GPU's kernels in a pass.
        collectives: of the time of transfers and collectives.
        gpu_spread: of the time of kernels between GPUs.
        pauses: rare pauses of single GPUs.
    """

    kernels: Entry[Relative]
    collectives: Entry[Relative]
    gpu_spread: Entry[Relative]
    pauses: PauseEntries
