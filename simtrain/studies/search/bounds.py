"""Lower bounds of a plan's iteration time and peak memory, from the passes that the plan runs.

Time. A rank runs its passes one after another on one compute stream, in the schedule's order:

1. Together they take at least the sum of their times, in any order.
2. The first one waits for a forward pass of every earlier virtual stage, in a chain.
3. After the last one that computes input gradients follows one of every earlier virtual stage, in a
   chain. Only weight gradients, if they are split off, can run meanwhile.
4. A rank then reduces its gradients and runs its optimizer step on the same stream.

So for every rank (2) + (1) + (4) is a bound, and (2) + (1) + (3) + (4) without split-off weight
gradients, with (4) of the rank where (3) ends. Messages, exchanges and shared links only add
to the time. The time of a pass is its simulated duration or, quicker, the time for which its
program keeps one of its streams busy. Merged passes take less than the sum of their times, but each
stream is as busy as those of both: the bound is then that of the busiest stream of all passes.

Memory. A rank always holds its model states. The first rank also holds what its forward passes
save, until their backward passes begin; the schedule says how many wait at most.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import add
from typing import NamedTuple

import numpy as np

from simtrain.iteration.memory.report import allocator_bytes
from simtrain.iteration.memory.states import model_states
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.schedules import KINDS, Kind, PipelineOrder, ScheduleVersion, schedule_of
from simtrain.workload.chunk import Parameters
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.passes import Pass
from simtrain.workload.record import record_pass
from simtrain.workload.step_options import StepOptions

_ROUNDING = 1 - 1e-9
"""Margin for sums in another order, which differ in their last digits."""

_WAITING = np.array([{"F": 1, "B": -1, "I": -1, "W": 0}[kind] for kind in KINDS])
"""Change of the number of forward passes that wait for their backward passes, by kind."""


class Bounds:
    """Lower bounds of plans on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._streams_s = functools.cache(self._add_up_pass)
        self._segment_s = functools.cache(self._add_up_segment)

    def busy_s(self, plan: Plan) -> float:
        """Return a quick bound of the iteration time, from the busiest stream of each pass."""
        if plan.order.merges_passes:
            return max(map(partial(self._stream_s, plan), range(1 + len(Stream))))
        return self._iteration_s(plan, lambda chunk_pass: max(self._streams_s(chunk_pass)))

    def estimate_s(self, plan: Plan) -> float:
        """Return a quick estimate, no bound: as if no op of a pass overlapped another."""

        def pass_s(chunk_pass: Pass) -> float:
            host_s, *streams_s = self._streams_s(chunk_pass)
            return max(host_s, sum(streams_s))

        return self._iteration_s(plan, pass_s)

    def iteration_s(self, plan: Plan) -> float:
        """Return a close bound of the iteration time; simulates each different pass once."""
        if plan.order.merges_passes:
            return self.busy_s(plan)
        return self._iteration_s(plan, lambda chunk_pass: self.machine.time(chunk_pass).duration_s)

    def states_bytes(self, plan: Plan) -> int:
        """Return a quick bound of the peak: the model states of the fullest stage."""
        return self._with_allocator(max(_states_bytes(plan)))

    def peak_bytes(self, plan: Plan) -> int:
        """Return a bound of the peak: model states, and saved activations of the first stage."""
        first, *others = _states_bytes(plan)
        return self._with_allocator(max(first + _activations_bytes(plan), *others, first))

    def _with_allocator(self, tensor_bytes: int) -> int:
        return tensor_bytes + allocator_bytes(self.machine.model.profile, tensor_bytes)

    def _stream_s(self, plan: Plan, stream: int) -> float:
        """Return the bound if passes only kept the host (0) or one of their streams busy."""
        return self._iteration_s(plan, lambda chunk_pass: self._streams_s(chunk_pass)[stream])

    def _iteration_s(self, plan: Plan, seconds: Callable[[Pass], float]) -> float:
        """Return the bound if each pass takes at least `seconds(pass)`."""
        times = _least_seconds(plan, seconds)
        forward_s = times["F"]
        # A backward pass is whole (B), or split into input (I) and weight gradients (W).
        inputs_s = [*map(min, times["B"], times["I"])]
        backward_s = [*map(min, times["B"], map(add, times["I"], times["W"]))]
        numbers, ranks = plan.model_chunks.numbers, _Ranks.of(plan.order).virtual_stages
        placement = plan.order.placement
        steps_s = self._steps_s(plan, ranks, seconds)
        first_step_s = next(
            step_s for stages, step_s in zip(ranks, steps_s, strict=True) if 0 in stages
        )
        before_s = [*accumulate((forward_s[number] for number in numbers), initial=0.0)]
        after_s = [*accumulate((inputs_s[number] for number in numbers), initial=0.0)]
        iteration_s = 0.0
        for virtual_stages, step_s in zip(ranks, steps_s, strict=True):
            # The earliest of the rank's chunks in their copies of the model.
            first = min(stage % placement.stages_per_copy for stage in virtual_stages)
            chunks = [numbers[stage] for stage in virtual_stages]
            all_s, without_split_s = (
                plan.scenario.num_microbatches
                // placement.copies
                * sum(forward_s[chunk] + back_s[chunk] for chunk in chunks)
                for back_s in (backward_s, inputs_s)
            )
            ends_s = all_s + step_s, without_split_s + after_s[first] + first_step_s
            iteration_s = max(iteration_s, before_s[first] + max(ends_s))
        return _ROUNDING * iteration_s

    def _steps_s(
        self,
        plan: Plan,
        ranks: Sequence[Sequence[int]],
        seconds: Callable[[Pass], float],
    ) -> list[float]:
        """Return [ranks], the least time of the reduction of gradients and the optimizer step."""
        different = dict.fromkeys(plan.stage_parameters)
        times = {
            parameters: math.fsum(self.machine.step_seconds(plan.step_options, parameters).values())
            for parameters in different
        }
        steps_s = [times[parameters] for parameters in plan.stage_parameters]
        if not plan.reductions:
            return steps_s
        numbers = plan.model_chunks.numbers
        return [
            step_s + sum(seconds(plan.reductions[numbers[stage]]) for stage in virtual_stages)
            for step_s, virtual_stages in zip(steps_s, ranks, strict=True)
        ]

    def _add_up_pass(self, chunk_pass: Pass) -> list[float]:
        """Return for how long a pass keeps the host and each of its streams busy."""
        launch_s = self.machine.host_issue_s(chunk_pass.options.launch_s)
        busy_s = [0.0] * (1 + len(Stream))
        for segment, number in Counter(record_pass(chunk_pass).segments).items():
            busy_s[0] += number * len(segment.ops) * launch_s
            for stream, stream_s in enumerate(self._segment_s(segment), start=1):
                busy_s[stream] += number * stream_s
        return busy_s

    def _add_up_segment(self, segment: Segment) -> list[float]:
        """Return [streams], the time of a segment's ops on each stream."""
        busy_s = [0.0] * len(Stream)
        for op in segment.ops:
            busy_s[stream_of(op)] += self.machine.model.seconds(op.work)
        return busy_s


def _least_seconds(plan: Plan, seconds: Callable[[Pass], float]) -> dict[Kind, list[float]]:
    """Return the least time of each kind of pass, per different chunk; infinity for none.

    A chunk's passes differ in what they recompute, and in whether they reduce gradients.
    """
    num_chunks = len(plan.model_chunks.different)
    times = {kind: [math.inf] * num_chunks for kind in KINDS}
    for passes in (plan.passes, plan.passes_skipping_sync):
        for (number, kind, _), chunk_pass in passes.items():
            times[kind][number] = min(times[kind][number], seconds(chunk_pass))
    return times


def _states_bytes(plan: Plan) -> list[int]:
    """Return the model states of the first stage, then of the other different ones."""
    return _states_of_stages(plan.step_options, plan.stage_parameters)


@functools.lru_cache(maxsize=1024)
def _states_of_stages(options: StepOptions, stages: tuple[Parameters, ...]) -> list[int]:
    return [
        model_states(options, stage.total, stage.experts, stage.in_fp8).total_bytes
        for stage in dict.fromkeys(stages)
    ]


def _activations_bytes(plan: Plan) -> int:
    """Return the least bytes that the first rank's waiting forward passes save."""
    ranks, numbers = _Ranks.of(plan.order), plan.model_chunks.numbers
    chunks = {numbers[virtual_stage] for virtual_stage in ranks.virtual_stages[0]}
    saved_bytes = (
        pass_memory(chunk_pass).remaining_bytes
        for (number, kind, _), chunk_pass in plan.passes.items()
        if kind == "F" and number in chunks
    )
    return ranks.most_waiting * min(saved_bytes)


class _Ranks(NamedTuple):
    """What the order of a pipeline says of its ranks.

    Args:
        virtual_stages: [ranks], the virtual stages of each rank.
        most_waiting: the most forward passes of the first rank that wait for their backward passes.
    """

    virtual_stages: tuple[tuple[int, ...], ...]
    most_waiting: int

    @classmethod
    def of(cls, order: PipelineOrder) -> _Ranks:
        """Read the actions of an order."""
        sizes = order.num_stages, order.num_chunks, order.num_microbatches
        return _ranks(order.schedule_name, *sizes, order.merges)


@functools.lru_cache(maxsize=4096)
def _ranks(name: str | ScheduleVersion, p: int, m: int, n: int, merges: bool) -> _Ranks:
    schedule = schedule_of(name, p, m, n, merges=merges)
    first_rank = slice(schedule.rank_starts[1])
    waiting = np.cumsum(_WAITING[schedule.kind[first_rank]])
    if schedule.merges is not None:
        # A merged backward pass frees tensors before its forward pass has saved all of its own.
        waiting = waiting[~schedule.merges[first_rank]]
    return _Ranks(
        schedule.placement.virtual_stages,
        int(waiting.max()),
    )
