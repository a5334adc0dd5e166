"""What draws of an iteration are asked for. Help of commands reads it: it imports nothing slow."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result
    from simtrain.scenario import Scenario

DEFAULT_DRAWS = 100


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Iterations of a scenario, drawn with what its section `variation` says.

    Args:
        scenario: a scenario, or a result of `simulate`.
        draws: iterations that are drawn. Default: 100.
        seed: of the random numbers: a whole number from 0 on.
        workers: processes that draw; the answer is the same for any number. Default: 1.
        ray: Ray cluster, host:port, whose processors draw in place of processes on this machine.
    """

    scenario: Scenario | Result
    _: KW_ONLY
    draws: int = DEFAULT_DRAWS
    seed: int = 0
    workers: int = 1
    ray: str | None = None
