"""Lower bounds of a plan's iteration time and peak memory, from the passes that the plan runs.

Time. A rank runs its passes one after another on one compute stream, in the schedule's order:

1. Together they take at least the sum of their times, in any order. This counts all passes.
2. The first pass of the walk waits for a forward pass of every earlier virtual stage, in a chain.
3. After the last pass of the walk that computes input gradients follows one of every earlier
   virtual stage, in a chain. Weight gradients that are split off can run meanwhile.
4. A rank then reduces its gradients and runs its optimizer step on the same stream.

So for every rank (1) + (4) of all passes is a bound; (2) + (1) + (4) of those of the walk; and
(2) + (1) + (3) + (4) of those of the walk without split-off weight gradients, with (4) of the rank
where (3) ends.
Messages, exchanges and shared links only add to the time. The time of a pass is its simulated
duration or, quicker, the time for which its program keeps one of its streams busy. Merged passes
take less than the sum of their times, but each stream is as busy as those of both: the bound is
then that of the busiest stream of all passes.

Memory. A rank always holds its model states. When most of its forward passes of the walk wait for
their backward passes, it holds what they save, and the next of these backward passes adds its
working tensors. Each backward pass begins with what its own forward pass saved.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import add
from typing import NamedTuple

import numpy as np

from simtrain.iteration.memory.buffers import rank_states
from simtrain.iteration.memory.report import allocator_bytes
from simtrain.iteration.memory.working import makes_gradients, pass_memory
from simtrain.iteration.plan import PassKey, Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.schedules import KINDS, Kind, Order
from simtrain.workload.chunk import Parameters
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.optimizer import StepOptions
from simtrain.workload.passes import Pass, record_pass

_ROUNDING = 1 - 1e-9
"""Margin for sums in another order, which differ in their last digits."""

_CACHED = 8192
"""Passes, and segments, whose times on each stream are remembered."""

_WAITING = np.array([{"F": 1, "B": -1, "I": -1, "W": 0}[kind] for kind in KINDS])
"""Change of the number of forward passes that wait for their backward passes, by kind."""


class Bounds:
    """Lower bounds of plans on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # They hold passes and segments, so more of them would take much memory.
        self._streams_s = functools.lru_cache(maxsize=_CACHED)(self._add_up_pass)
        self._segment_s = functools.lru_cache(maxsize=_CACHED)(self._add_up_segment)

    def busy_s(self, plan: Plan) -> float:
        """Return a quick bound of the iteration time, from the busiest stream of each pass."""
        if plan.order.merges_passes:
            return max(map(partial(self._stream_s, plan), range(1 + len(Stream))))
        return self._iteration_s(plan, lambda chunk_pass: max(self._streams_s(chunk_pass)))

    def iteration_s(self, plan: Plan) -> float:
        """Return a close bound of the iteration time; simulates each different pass once."""
        if plan.order.merges_passes:
            return self.busy_s(plan)
        return self._iteration_s(plan, lambda chunk_pass: self.machine.time(chunk_pass).duration_s)

    def states_bytes(self, plan: Plan) -> int:
        """Return a quick bound of the peak: the model states of the fullest stage."""
        return self._with_allocator(max(_states_bytes(plan)))

    def peak_bytes(self, plan: Plan, limit_bytes: float = math.inf) -> int:
        """Return a bound of the peak: model states, saved activations, working tensors.

        It is that of the first ranks, up to one above the limit.
        """
        stages = dict.fromkeys(plan.stage_parameters)
        states_bytes = dict(zip(stages, _states_bytes(plan), strict=True))
        most_bytes = 0
        for stage, activations_bytes in _activations_bytes(plan):
            tensor_bytes = states_bytes[stage] + activations_bytes
            most_bytes = max(most_bytes, self._with_allocator(tensor_bytes))
            if most_bytes > limit_bytes:
                break
        return most_bytes

    def _with_allocator(self, tensor_bytes: int) -> int:
        return tensor_bytes + allocator_bytes(self.machine.model.profile, tensor_bytes)

    def _stream_s(self, plan: Plan, stream: int) -> float:
        """Return the bound if passes only kept the host (0) or one of their streams busy."""
        return self._iteration_s(plan, lambda chunk_pass: self._streams_s(chunk_pass)[stream])

    def _iteration_s(self, plan: Plan, seconds: Callable[[Pass], float]) -> float:
        """Return the bound if each pass takes at least `seconds(pass)`."""
        forward_s, inputs_s, backward_s = _forward_input_and_backward(_least_seconds(plan, seconds))
        numbers, placement = plan.model_chunks.numbers, plan.order.placement
        ranks = _ranks_of(plan.order).virtual_stages
        steps_s = self._steps_s(plan, ranks, seconds)
        first_step_s = next(
            step_s for stages, step_s in zip(ranks, steps_s, strict=True) if 0 in stages
        )
        before_s = [*accumulate((forward_s[number] for number in numbers), initial=0.0)]
        after_s = [*accumulate((inputs_s[number] for number in numbers), initial=0.0)]
        num_passes = plan.scenario.num_microbatches // placement.copies

        def passes_s(stages: Iterable[int], back_s: Sequence[float]) -> float:
            """Return the time of all forward passes of stages, and of what follows them."""
            return num_passes * sum(forward_s[numbers[at]] + back_s[numbers[at]] for at in stages)

        iteration_s = 0.0
        for virtual_stages, step_s in zip(ranks, steps_s, strict=True):
            # The earliest of the rank's chunks in their copies of the model.
            first = min(stage % placement.stages_per_copy for stage in virtual_stages)
            # Facts 1 and 4, of all passes of the rank.
            all_s = passes_s(virtual_stages, backward_s)
            iteration_s = max(iteration_s, all_s + step_s)
            # Facts 2, 1 and 4, of the passes of the walk.
            walk_s = before_s[first] + passes_s(virtual_stages, backward_s)
            # Facts 2, 1, 3 and 4, of the passes of the walk without split-off weight gradients.
            without_split_s = passes_s(virtual_stages, inputs_s)
            chained_s = before_s[first] + without_split_s + after_s[first] + first_step_s
            iteration_s = max(iteration_s, walk_s + step_s, chained_s)
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
        machine = self.machine.pass_machine(chunk_pass.options)
        busy_s = [0.0] * (1 + len(Stream))
        for segment, number in Counter(record_pass(chunk_pass).segments).items():
            busy_s[0] += number * machine.host_s(segment)
            for stream, stream_s in enumerate(self._segment_s(segment), start=1):
                busy_s[stream] += number * stream_s
        return busy_s

    def _add_up_segment(self, segment: Segment) -> list[float]:
        """Return [streams], the time of a segment's ops on each stream."""
        busy_s = [0.0] * len(Stream)
        for op in segment.ops:
            busy_s[stream_of(op)] += self.machine.model.seconds(op.work)
        return busy_s


def _forward_input_and_backward(
    times: dict[Kind, list[float]],
) -> tuple[list[float], list[float], list[float]]:
    """Return [chunks], the least times of a forward pass, of input gradients, of all gradients.

    A backward pass is whole (B), or split into input (I) and weight gradients (W).
    """
    inputs_s = [*map(min, times["B"], times["I"])]
    return times["F"], inputs_s, [*map(min, times["B"], map(add, times["I"], times["W"]))]


def _least_seconds(plan: Plan, seconds: Callable[[Pass], float]) -> dict[Kind, list[float]]:
    """Return the least time of passes by kind, per different chunk; infinity for none.

    A chunk's passes differ in what they recompute, and in whether they reduce gradients.
    """
    num_chunks = len(plan.model_chunks.different)
    times = {kind: [math.inf] * num_chunks for kind in KINDS}
    for passes in (plan.passes, plan.quiet_passes):
        for (number, kind, _), chunk_pass in passes.items():
            times[kind][number] = min(times[kind][number], seconds(chunk_pass))
    return times


def _states_bytes(plan: Plan) -> list[int]:
    """Return the model states of the different stages, without gradients that a pass makes."""
    stages = tuple(dict.fromkeys(plan.stage_parameters))
    return _states_of_stages(plan.step_options, stages, has_gradients=not makes_gradients(plan))


@functools.lru_cache(maxsize=1024)
def _states_of_stages(
    options: StepOptions, stages: tuple[Parameters, ...], *, has_gradients: bool
) -> list[int]:
    states = [rank_states(options, stage) for stage in stages]
    return [each.total_bytes - each.gradients_bytes * (not has_gradients) for each in states]


def _activations_bytes(plan: Plan) -> Iterator[tuple[Parameters, int]]:
    """Yield the parameters of different ranks, and the least bytes of their activations at a peak.

    These are saved activations and working tensors.
    """
    keys = defaultdict[tuple[int, bool], list[PassKey]](list)
    for key in plan.passes:
        number, kind, *_ = key
        if kind != "W":
            keys[number, kind == "F"].append(key)
    # The working tensors of a merged pass can be fewer than those of its two passes.
    has_working = not plan.order.merges_passes

    def saved_bytes_of(key: PassKey) -> int:
        """Return the bytes that a forward pass leaves on the GPU."""
        return pass_memory(plan.passes[key]).remaining_bytes

    def extra_bytes_of(key: PassKey) -> int:
        """Return the bytes of a backward pass's working tensors."""
        return pass_memory(plan.passes[key]).extra_bytes * has_working

    @functools.cache
    def least_bytes(chunk: int) -> tuple[int, int]:
        """Return the bytes that a chunk saves, and those of its working tensors."""
        return min(map(saved_bytes_of, keys[chunk, True])), min(
            map(extra_bytes_of, keys[chunk, False])
        )

    numbers = plan.model_chunks.numbers
    ranks = zip(plan.stage_parameters, *_ranks_of(plan.order), strict=True)
    for parameters, chunks, most_waiting in dict.fromkeys(
        (
            parameters,
            frozenset(numbers[stage] for stage in virtual_stages),
            most_waiting,
        )
        for parameters, virtual_stages, most_waiting in ranks
    ):
        saved_bytes, working_bytes = zip(*map(least_bytes, chunks), strict=True)
        waiting_bytes = most_waiting * min(saved_bytes) + min(working_bytes)
        yield parameters, max(waiting_bytes, *map(add, saved_bytes, working_bytes))


class _Ranks(NamedTuple):
    """What the order of a pipeline says of its ranks.

    Args:
        virtual_stages: [ranks], the virtual stages of each rank.
        most_waiting: [ranks], the most forward passes of the walk that wait for their backward
            passes.
    """

    virtual_stages: tuple[tuple[int, ...], ...]
    most_waiting: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _ranks_of(order: Order) -> _Ranks:
    schedule = order.actions
    # Each rank ends with none waiting, so one cumulative sum covers all ranks.
    waiting = np.cumsum(_WAITING[schedule.kind])
    if schedule.merges is not None:
        # A merged backward pass frees tensors before its forward pass has saved all of its own.
        waiting = np.where(schedule.merges, 0, waiting)
    most_waiting = np.maximum.reduceat(waiting, schedule.rank_starts[:-1])
    return _Ranks(schedule.placement.virtual_stages, tuple(most_waiting.tolist()))
