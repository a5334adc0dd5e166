"""Lower bounds of a plan's iteration time, from the passes that the plan runs.

A rank runs its passes one after another on one compute stream, in the schedule's order:

1. Together they take at least the sum of their times, in any order. This counts all passes.
2. The first pass of the walk waits for a forward pass of every earlier virtual stage, in a chain.
3. After the last pass of the walk that computes input gradients follows one of every earlier
   virtual stage, in a chain. Weight gradients that are split off can run meanwhile.
4. A rank then reduces its gradients and runs its optimizer step on the same stream.

So for every rank (2) + (1) + (4) is a bound; and (2) + (1) + (3) + (4) of the passes without
split-off weight gradients, with (4) of the rank where (3) ends.
Messages, exchanges and shared links only add to the time. A pass takes at least the time for which
it keeps the host or a stream busy, and that of its longest chain of kernels and of collectives
between which they wait. Merged passes share chains, but each stream is as busy as those of both:
the bound is then that of the busiest stream of all passes.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import add

from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.schedules import KINDS, Kind
from simtrain.workload.chunk import Chunk
from simtrain.workload.hashing import shared
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.passes import Pass, PassKind, PassOptions, record_pass
from simtrain.workload.recompute import SAVE_ALL

_ROUNDING = 1 - 1e-9
"""Margin for sums in another order, which differ in their last digits."""

_CACHED = 8192
"""Passes, and segments, whose times on each stream are remembered."""

_CHAIN = 1 + len(Stream)
"""Place of the longest chain of a pass, after the host and the streams."""


class Bounds:
    """Lower bounds of the time of plans on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # They hold passes and segments, so more of them would take much memory.
        self._streams_s = functools.lru_cache(maxsize=_CACHED)(self._add_up_pass)
        self._segment_s = functools.lru_cache(maxsize=_CACHED)(self._add_up_segment)
        self._model_s = functools.lru_cache(maxsize=_CACHED)(self._add_up_model)

    def work_s(self, plan: Plan) -> float:
        """Return a bound for all plans that differ in stages, recompute and states alone.

        Together, ranks run every block of the model for every microbatch, and one of them has at
        least the mean. Recompute, and the collectives of ZeRO, only add to it.
        """
        options = shared(replace(plan.options, sharding=None))
        scenario = plan.scenario
        merges = scenario.overlap.merged_passes or scenario.facts.merged_passes
        model_s = self._model_s(plan.model, options, merges or plan.order.merges_passes)
        return _ROUNDING * scenario.num_microbatches * model_s / plan.mesh.pp

    def busy_s(self, plan: Plan) -> float:
        """Return a bound of the iteration time, from the busiest stream of each pass."""
        if plan.order.merges_passes:
            return max(
                self._iteration_s(plan, lambda each, at=stream: self._streams_s(each)[at])  # type: ignore[misc]
                for stream in range(_CHAIN)
            )
        return self._iteration_s(plan, lambda chunk_pass: max(self._streams_s(chunk_pass)))

    def _iteration_s(self, plan: Plan, seconds: Callable[[Pass], float]) -> float:
        """Return the bound if each pass takes at least `seconds(pass)`."""
        forward_s, inputs_s, backward_s = _least_seconds(plan, seconds)
        numbers, placement = plan.model_chunks.numbers, plan.order.placement
        ranks = placement.virtual_stages
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
            # Facts 2, 1 and 4, of all passes of the rank.
            all_s = before_s[first] + passes_s(virtual_stages, backward_s)
            # Facts 2, 1, 3 and 4, of its passes without split-off weight gradients.
            without_split_s = passes_s(virtual_stages, inputs_s)
            chained_s = before_s[first] + without_split_s + after_s[first] + first_step_s
            iteration_s = max(iteration_s, all_s + step_s, chained_s)
        return _ROUNDING * iteration_s

    def _steps_s(
        self, plan: Plan, ranks: Sequence[Sequence[int]], seconds: Callable[[Pass], float]
    ) -> list[float]:
        """Return [ranks], the least time of the reduction of gradients and the optimizer step."""
        times = {
            parameters: math.fsum(self.machine.step_seconds(plan.step_options, parameters).values())
            for parameters in plan.step_parameters
        }
        steps_s = [times[parameters] for parameters in plan.stage_parameters]
        reduction_s = {variant.chunk: seconds(pass_) for variant, pass_ in plan.reductions.items()}
        numbers = plan.model_chunks.numbers
        return [
            step_s + sum(reduction_s.get(numbers[stage], 0.0) for stage in virtual_stages)
            for step_s, virtual_stages in zip(steps_s, ranks, strict=True)
        ]

    def _add_up_model(self, model: Chunk, options: PassOptions, merges: bool) -> float:
        """Return for how long both passes of a model keep their busiest stream busy."""
        kinds: tuple[PassKind, ...] = "F", "B"
        passes = (Pass(model, kind, SAVE_ALL, options) for kind in kinds)
        busy_s: list[float] = [*map(add, *map(self._add_up_pass, passes))]
        return max(busy_s[:_CHAIN] if merges else busy_s)

    def _add_up_pass(self, chunk_pass: Pass) -> list[float]:
        """Return for how long a pass keeps the host and its streams busy, and its longest chain."""
        machine = self.machine.pass_machine(chunk_pass.options)
        busy_s = [0.0] * (1 + _CHAIN)
        for segment, number in Counter(record_pass(chunk_pass).segments).items():
            busy_s[0] += number * machine.host_s(segment)
            for stream, stream_s in enumerate(self._segment_s(segment), start=1):
                busy_s[stream] += number * stream_s
        return busy_s

    def _add_up_segment(self, segment: Segment) -> list[float]:
        """Return [streams], the time of a segment's ops on each stream, and of the longest chain.

        The chain ends with a kernel, or a collective that the next segment waits for: the next
        kernel follows it. Its ops wait for each other, as when a pass is simulated.
        """
        busy_s, free_s = [0.0] * len(Stream), [0.0] * len(Stream)
        ends_s = list[float]()
        for op, waits in zip(segment.ops, segment.waits, strict=True):
            stream, op_s = stream_of(op), self.machine.model.seconds(op.work)
            busy_s[stream] += op_s
            # Collectives too wait for the kernel before them.
            start_s = max(free_s[stream], free_s[Stream.COMPUTE], *(ends_s[at] for at in waits))
            free_s[stream] = start_s + op_s
            ends_s.append(start_s + op_s)
        awaited_s = (ends_s[at] for at in segment.awaited)
        return [*busy_s, max([free_s[Stream.COMPUTE], *awaited_s])]


def _least_seconds(
    plan: Plan, seconds: Callable[[Pass], float]
) -> tuple[list[float], list[float], list[float]]:
    """Return [chunks], the least times of a forward pass, of input gradients, of all gradients.

    A chunk's passes differ in what they recompute, and in whether they reduce gradients. A backward
    pass is whole (B), or split into input (I) and weight gradients (W).
    """
    num_chunks = len(plan.model_chunks.different)
    times: dict[Kind, list[float]] = {kind: [math.inf] * num_chunks for kind in KINDS}
    for (number, kind, *_), chunk_pass in plan.variants.items():
        if isinstance(chunk_pass, Pass) and kind != "R":
            times[kind][number] = min(times[kind][number], seconds(chunk_pass))
    inputs_s = [*map(min, times["B"], times["I"])]
    return times["F"], inputs_s, [*map(min, times["B"], map(add, times["I"], times["W"]))]
