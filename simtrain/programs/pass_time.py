"""What decides how long a pass takes, and where its seconds go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from simtrain.workload.work import Work


@dataclass(frozen=True, slots=True)
class PassTime:
    """Where the seconds of one forward or backward pass of a chunk go; the parts add up.

    Communication fields count exposed time only. When a data-parallel and another collective are
    exposed at the same time, the time is charged to the other one. `layer_ends_s` are the moments
    at which each layer's work has ended.
    """

    compute_s: float
    recompute_s: float
    exposed_communication_s: float
    exposed_data_s: float
    launch_s: float
    layer_ends_s: tuple[float, ...]

    @property
    def duration_s(self) -> float:
        """Seconds from the first launch to the last kernel's end."""
        return math.fsum(
            (
                self.compute_s,
                self.recompute_s,
                self.exposed_communication_s,
                self.exposed_data_s,
                self.launch_s,
            )
        )


@dataclass(frozen=True, slots=True)
class PassMachine:
    """What decides how long a pass takes on a machine.

    Args:
        seconds: of an op's work run alone.
        launch_s: seconds in which the host launches one kernel.
        load: what an op's work takes of the device while it runs at full speed, 1 for all of it.
    """

    seconds: Callable[[Work], float]
    launch_s: float
    load: Callable[[Work], float]
