"""Close lower bound of the iteration time, without building the iteration's timeline.

A task starts after its dependencies and after the previous task on its stream. So the durations
along any chain of such tasks add up to at most the iteration time. The bound is the longest of
several chains, one per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

import numpy as np
from numpy.typing import NDArray

from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.pass_tasks import PassTime
from simtrain.iteration.programs.seconds import Machine
from simtrain.schedules import Kind
from simtrain.schedules.warmup import WarmupFamily

Floats = NDArray[np.float64]


def iteration_bound_s(plan: Plan, machine: Machine) -> float:
    """Lower bound of a plan's iteration time, up to rounding.

    The chain through a stage has four parts:

    - Into the stage: its first action needs a microbatch that has passed forward through the first
      chunk of every earlier stage. Between two stages are the message and the receiver's work.
    - On the stage: everything that its compute stream runs, from the first to the last action. If
      messages block, also the slowest message of each exchange: messages start when the stage
      reaches the exchange, and the stage continues when all of them have ended.
    - Out of the stage: its last action is the backward pass of its first chunk, because that pass
      follows all other passes of its microbatch on the stage. Its result passes through the first
      chunk of every earlier stage.
    - After the pipeline: gradients are reduced, stages with tied embeddings synchronise, all
      stages synchronise for the gradient norm, and each stage updates its parameters.

    Args:
        plan: the iteration, with a resolved recompute policy. If a chunk has passes that save all
            activations and passes that recompute, the shorter time counts for both. The same holds
            for passes that skip the gradient reduction.
        machine: runs each different pass once.
    """
    pipeline = _Pipeline.of(plan, machine)
    last_s, ready_s = pipeline.ends_s()
    return _with_step_s(plan, machine, pipeline, last_s, ready_s)


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """Durations of a pipeline's passes and messages.

    Args:
        forward_s, backward: per virtual stage.
        message_s, shared_message_s: a message between each stage and the next (the last stage's
            next is the first): alone, and if its sender sends a second one at the same time.
        post_s: host time per message while the device waits.
        gather_s: the receiver's work per message.
        blocks: whether stages wait for their messages.
    """

    schedule: WarmupFamily
    num_stages: int
    num_chunks: int
    num_microbatches: int
    forward_s: Sequence[float]
    backward: Sequence[PassTime]
    message_s: Sequence[float]
    shared_message_s: Sequence[float]
    post_s: float
    gather_s: float
    blocks: bool

    @classmethod
    def of(cls, plan: Plan, machine: Machine) -> _Pipeline:
        """Time the passes and messages of a plan."""
        scenario, mesh, model = plan.scenario, plan.mesh, machine.model
        stages = range(mesh.pp)
        crossed = [mesh.levels_crossed(stage, (stage + 1) % mesh.pp) for stage in stages]
        alone, shared = (
            {levels: model.transfer_s(plan.sent_bytes, levels, number) for levels in set(crossed)}
            for number in (1, 2)
        )
        blocks = not scenario.overlaps_pipeline
        return cls(
            cast(WarmupFamily, scenario.schedule_family),  # others have no proved bound
            mesh.pp,
            scenario.parallelism.interleave,
            scenario.num_microbatches,
            [one.duration_s for one in _shortest_passes(plan, machine, "F")],
            _shortest_passes(plan, machine, "B"),
            [alone[levels] for levels in crossed],
            [shared[levels] for levels in crossed],
            machine.host_issue_s(scenario.host_issue_s) if blocks else 0.0,
            model.seconds(plan.receive_gather.work) if plan.receive_gather else 0.0,
            blocks,
        )

    def ends_s(self) -> tuple[list[float], list[float]]:
        """Per stage: the end of its last backward pass, and of its last message."""
        last_s, start_s = [], 0.0
        for stage in range(self.num_stages):
            last_s.append(start_s + self.own_s(stage))
            start_s += self.forward_s[stage] + self.hop_s(stage)
        for stage in reversed(range(self.num_stages - 1)):
            out_s = last_s[stage + 1] + self.hop_s(stage) + self.backward[stage].duration_s
            last_s[stage] = max(last_s[stage], out_s)
        # If exchanges block, the stage's last exchange sends the result of that pass.
        sends_s = [0.0, *self.message_s[:-1]] if self.blocks else [0.0] * self.num_stages
        posts_s = [0.0] + [self.post_s] * (self.num_stages - 1)
        return last_s, [sum(parts) for parts in zip(last_s, sends_s, posts_s, strict=True)]

    def hop_s(self, stage: int) -> float:
        """Time between a pass on a stage and the pass that uses its result on the next stage."""
        return self.message_s[stage] + self.post_s + self.gather_s

    def own_s(self, stage: int) -> float:
        """Time from the start of a stage's first action to the end of its last."""
        p, n = self.num_stages, self.num_microbatches
        chunks = range(stage, p * self.num_chunks, p)
        passes_s = n * sum(self.forward_s[one] + self.backward[one].duration_s for one in chunks)
        if p == 1:
            return passes_s
        ends = (stage == 0) + (stage == p - 1)
        # Forward and backward through every chunk, except the model's input and output.
        num_received = n * (2 * self.num_chunks - ends)
        is_first = stage == 0
        # Except the receive before the first action and the send after the last.
        own_s = passes_s + self.gather_s * (num_received - (not is_first))
        own_s += self.post_s * 2 * (num_received - (not is_first))
        return own_s + (self.blocked_s(stage) if self.blocks else 0.0)

    def blocked_s(self, stage: int) -> float:
        """Sum of the slowest message of each exchange between a stage's first and last action.

        `schedules.exchanges.blocking_steps` defines which messages share an exchange.
        """
        sizes = self.num_stages, self.num_chunks, self.num_microbatches
        warmup = self.schedule.num_warmup_forwards(stage, *sizes)
        pairs = self.num_chunks * self.num_microbatches - warmup
        if self.schedule.has_chunks:
            return self.interleaved_s(stage, warmup, pairs)
        # In warm-up and cool-down every message is a separate exchange. In the steady phase each
        # forward pass is followed by an exchange with the next stage, and each backward pass by an
        # exchange with the previous stage, of which the first only receives and the last only
        # sends.
        before_s = self.message_s[stage - 1] if stage > 0 else 0.0
        after_s = self.message_s[stage] if stage < self.num_stages - 1 else 0.0
        num_before = 2 * warmup + (pairs + 1 if pairs else 0)
        return (num_before - 2) * before_s + (2 * warmup + pairs) * after_s

    def interleaved_s(self, stage: int, warmup: int, pairs: int) -> float:
        """`blocked_s` of the interleaved schedule.

        An exchange follows every warm-up forward pass, every pair of a forward and a backward pass,
        and every cool-down backward pass. A middle stage sends the results of all passes and
        receives the inputs of the next ones; a pair sends two messages at the same time.
        """
        before_s, after_s = self.message_s[stage - 1], self.message_s[stage]
        two_s = max(self.shared_message_s[stage - 1], self.shared_message_s[stage])
        num_passes = warmup + pairs
        if stage == 0:
            # Backward passes of its first chunk send nothing, so their pairs send one message.
            both = pairs - self.last_in_turn(pairs)
            # No exchange follows the last backward pass.
            return both * two_s + (pairs - both + warmup + max(warmup - 1, 0)) * after_s
        if stage == self.num_stages - 1:
            # Forward passes of its last chunk send nothing, and the last pass receives nothing.
            both = pairs - self.last_in_turn(num_passes) + self.last_in_turn(warmup)
            receives = warmup if pairs else warmup - 1
            # The last exchange comes after the last action.
            one_s = (pairs - both + receives + warmup) * before_s
            return both * two_s + one_s - before_s
        one_s = max(before_s, after_s)
        if not pairs:
            return (2 * warmup - 2) * one_s + after_s
        return pairs * two_s + (2 * warmup - 1) * one_s

    def last_in_turn(self, num_passes: int) -> int:
        """Count the last chunk's passes among a stage's first `num_passes` in one direction.

        The chunks take turns; each turn has one microbatch per stage.
        """
        turns, rest = divmod(num_passes, self.num_stages * self.num_chunks)
        return turns * self.num_stages + max(0, rest - (self.num_chunks - 1) * self.num_stages)


def _with_step_s(
    plan: Plan, machine: Machine, pipeline: _Pipeline, last_s: list[float], ready_s: list[float]
) -> float:
    """Add the optimizer step to the ends of each stage's passes and messages."""
    steps = [machine.step_seconds(plan.step_options, one) for one in plan.stage_parameters]

    def step_s(*fields: str) -> Floats:
        """Per stage: time of these parts of the optimizer step."""
        return np.array([sum(step.get(field, 0.0) for field in fields) for step in steps])

    ready = np.array(ready_s)
    if plan.has_buckets:
        ready = np.maximum(ready, np.add(last_s, _buckets_s(plan, machine, pipeline)))
    if plan.reductions:
        numbers = plan.model_chunks.numbers
        chunks_s = {number: machine.time(one).duration_s for number, one in plan.reductions.items()}
        own = (numbers[stage :: plan.mesh.pp] for stage in range(plan.mesh.pp))
        reduced_s = [sum(chunks_s[number] for number in chunks) for chunks in own]
        ready = np.maximum(ready, np.add(last_s, reduced_s))
    ready = ready + step_s("average", "data_reduction", "sequence_parallel")
    holders = [stage for stage, step in enumerate(steps) if "embedding" in step]
    if holders:
        ready[holders] = ready[holders].max() + step_s("embedding").max()
    norm_ready_s = (ready + step_s("to_host", "norm")).max()
    updates_s = step_s("update", "parameter_gather", "weight_cast").max()
    return float(norm_ready_s + step_s("norm_reduction").max() + updates_s)


def _buckets_s(plan: Plan, machine: Machine, pipeline: _Pipeline) -> list[float]:
    """Per stage: time from the end of its last backward pass to the end of its last bucket.

    The buckets run one after another, each after the backward pass of its layers. Parameters
    outside layers are in the last bucket.
    """
    found: dict[tuple[object, ...], float] = {}
    stages = []
    for stage, held in enumerate(plan.stage_parameters):
        number = plan.model_chunks.numbers[stage]
        if (number, held) not in found:
            backward = pipeline.backward[stage]
            end_s = 0.0
            ends_s = (*backward.layer_ends_s[:-1], backward.duration_s)
            layer_ends = plan.buckets[number].layer_ends
            for bucket, num_layers in enumerate(layer_ends):
                is_last = num_layers == layer_ends[-1]
                ops = plan.bucket_ops(number, bucket, held if is_last else None)
                end_s = max(end_s, ends_s[num_layers - 1]) + machine.op_seconds(ops)
            found[number, held] = end_s - backward.duration_s
        stages.append(found[number, held])
    return stages


def _shortest_passes(plan: Plan, machine: Machine, kind: Kind) -> list[PassTime]:
    """Per virtual stage: time of the shortest pass of this kind that its chunk can run."""
    saves_all = (False, True) if plan.scenario.recompute.keep_microbatches else (False,)
    shortest = []
    for number, chunk in enumerate(plan.model_chunks.different):
        passes = [plan.chunk_pass(chunk, kind, keeping) for keeping in saves_all]
        quiet = (plan.passes_skipping_sync.get((number, kind, keeping)) for keeping in saves_all)
        times = map(machine.time, [*passes, *filter(None, quiet)])
        shortest.append(min(times, key=attrgetter("duration_s")))
    return [shortest[number] for number in plan.model_chunks.numbers]
