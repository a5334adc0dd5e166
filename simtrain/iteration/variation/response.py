"""How the duration of a task follows the time of its kernels, its collectives and its network.

The engine simulates each different pass again with slower and faster kernels or collectives, so
what overlaps stays hidden as far as it can. Between the simulated points the duration is
interpolated. A pass is a longest path through its ops, which is convex and piecewise linear in such
a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from simtrain.base.values import dataclass
from simtrain.engine.compiled import Floats
from simtrain.iteration.programs.parts import (
    IterationPart,
    PassPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.iteration.programs.pass_tasks import PassMachine, run_pass
from simtrain.iteration.programs.seconds import IterationSeconds
from simtrain.workload.ops import Op
from simtrain.workload.passes import RankPass, record_of
from simtrain.workload.work import Collective, HostWork, Work

Cause = Literal["kernels", "collectives", "network"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""What the time of a task depends on: kernels of the GPU, all transfers and collectives, and those
that leave a node.
"""
Factors: TypeAlias = Mapping[Cause, Sequence[float]]
"""The factors of durations at which passes are simulated, ascending; they contain 1."""


def _takes_kernels(work: Work) -> bool:
    return not isinstance(work, Collective | HostWork)


def _takes_collectives(work: Work) -> bool:
    return isinstance(work, Collective)


def _takes_network(work: Work) -> bool:
    return isinstance(work, Collective) and not work.group.inside_one_node


_TAKES: dict[Cause, Callable[[Work], bool]] = {
    "kernels": _takes_kernels,
    "collectives": _takes_collectives,
    "network": _takes_network,
}


@dataclass(frozen=True, slots=True)
class Response:
    """The duration of a task, relative to its usual one, at factors of one cause.

    Args:
        factors: factors of the time of the cause, ascending.
        ratios: durations at these factors; exactly 1 at the factor 1 of a cause.
    """

    factors: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def is_constant(self) -> bool:
        """Whether the task does not depend on the cause."""
        return all(ratio == 1.0 for ratio in self.ratios)

    def at(self, factors: Floats) -> Floats:
        """Return the ratios at any factors, beyond the ends along the last segment."""
        ratios: Floats = np.interp(factors, self.factors, self.ratios)
        (*_, before, last), (*_, ratio_before, ratio) = self.factors, self.ratios
        beyond = factors > last
        if beyond.any():
            slope = (ratio - ratio_before) / (last - before)
            ratios = np.where(beyond, ratio + slope * (factors - last), ratios)
        return ratios


class Responses:
    """The responses of an iteration's parts; each different pass is simulated once per factor."""

    def __init__(self, seconds: IterationSeconds, factors: Factors) -> None:
        self._seconds, self._factors = seconds, factors

    def pass_of(self, part: PassPart) -> RankPass:
        """Return the pass that a part is, or is a span of."""
        return self._seconds.plan.variants[part.variant]

    def ops_of(self, part: IterationPart) -> list[Op]:
        """Return the ops of a part; a message and a synchronization have none."""
        match part:
            case PassPart():
                record = record_of(self.pass_of(part))
                return [op for segment in dict.fromkeys(record.segments) for op in segment.ops]
            case TransferPart() | SynchronizationPart():
                return []
            case _:
                return [*self._seconds.ops_of(part)]

    def of(self, part: IterationPart, cause: Cause) -> Response:
        """Return the response of a part's tasks to a cause."""
        factors = tuple(self._factors[cause])
        match part:
            case PassPart():
                # A span of a pass follows the whole pass.
                key = self.pass_of(part), cause, factors
                response: Response = self._seconds.machine.responses.get(key, self._of_pass)
                return response
            case TransferPart(levels_crossed=crossed):
                depends = {"kernels": False, "collectives": True, "network": crossed > 0}
                return _linear(factors, float(depends[cause]))
            case SynchronizationPart():
                return _linear(factors, 0.0)
        seconds = self._seconds.machine.model.seconds
        times = [(op.work, seconds(op.work)) for op in self._seconds.ops_of(part)]
        total_s = sum(time_s for _, time_s in times)
        of_cause_s = sum(time_s for work, time_s in times if _TAKES[cause](work))
        return _linear(factors, of_cause_s / total_s if total_s else 0.0)

    def _of_pass(self, key: tuple[RankPass, Cause, tuple[float, ...]]) -> Response:
        pass_, cause, factors = key
        takes = _TAKES[cause]
        record = record_of(pass_)
        if not any(takes(op.work) for segment in set(record.segments) for op in segment.ops):
            return _linear(factors, 0.0)
        machine, engine = (
            self._seconds.machine.pass_machine(pass_.options),
            self._seconds.machine.engine,
        )

        def duration_s(factor: float) -> float:
            """Return the time of the pass with this factor of the cause."""
            scaled = PassMachine(
                lambda work: machine.seconds(work) * (factor if takes(work) else 1.0),
                machine.launch_s,
                machine.load,
                machine.call_s,
                machine.runs_ahead,
                machine.blocks,
                machine.slice_s,
            )
            return run_pass(record, scaled, engine).makespan_s

        usual_s = duration_s(1.0)
        ratios = [1.0 if factor == 1.0 else duration_s(factor) / usual_s for factor in factors]
        return Response(factors, tuple(ratios))


def _linear(factors: tuple[float, ...], share: float) -> Response:
    return Response(factors, tuple(1.0 + share * (factor - 1.0) for factor in factors))
