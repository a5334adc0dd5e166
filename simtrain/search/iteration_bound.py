"""A lower bound of an iteration's time that is close to it, without laying the iteration out.

Every task starts after the tasks that it waits for and after the task before it on its stream. So
the durations along any chain of such tasks add up to no more than the iteration time. The bound is
the longest of some chains, one through each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simtrain.plan import Plan
from simtrain.programs.pass_layout import PassTime
from simtrain.programs.seconds import Machine
from simtrain.schedules import Kind, ScheduleName, num_warmup_forwards
from simtrain.workload.passes import Pass


def iteration_bound_s(plan: Plan, machine: Machine) -> float:
    """A lower bound of a plan's iteration time, but for rounding.

    The chain through a stage has four parts:

    - Into the stage: its first action needs a microbatch that has passed forward through the first
      chunk of every earlier stage. Between two stages come the message and what its receiver does
      before it goes on.
    - On the stage: all that its own stream runs, from its first action to its last. If messages
      block, the slowest message of each exchange too: none starts before the stage has come to
      the exchange, and the stage goes on when all have ended.
    - Out of the stage: its last action is the backward pass of its first chunk, because that pass
      comes after all other passes of its microbatch on the stage. Its result goes on through the
      first chunk of every earlier stage.
    - After the pipeline: gradients are reduced, stages with tied embeddings meet, all stages meet
      for the norm of the gradients, and then each updates its parameters.

    Args:
        plan: the iteration. Its recompute may leave nothing open. Of passes that keep everything
            and passes that recompute, each counts as the shorter; so it is with passes that
            exchange less with other replicas than their likes.
        machine: runs each different pass once.
    """
    pipeline = _Pipeline.of(plan, machine)
    last_s, ready_s = pipeline.ends_s()
    return _with_step_s(plan, machine, pipeline, last_s, ready_s)


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """Seconds of a pipeline's parts.

    Args:
        forward_s, backward: for each virtual stage.
        message_s, shared_message_s: of a message from each stage to the next (after the last, the
            first) or back: alone, and if its sender sends another one at once.
        post_s: the host's work for each message while the device waits.
        gather_s: what a stage does with each message that it has received.
        blocks: whether stages wait for their messages.
    """

    schedule: ScheduleName
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
        scenario, mesh = plan.scenario, plan.mesh
        split, model = scenario.parallelism, machine.model
        saves_all = (False, True) if scenario.recompute.keep_microbatches else (False,)
        forward, backward = (
            [
                min(map(machine.time, _passes(plan, number, kind, saves_all)), key=_time_s)
                for number in range(len(plan.model_chunks.different))
            ]
            for kind in ("F", "B")
        )
        stages = range(mesh.pp)
        crossed = [mesh.levels_crossed(stage, (stage + 1) % mesh.pp) for stage in stages]
        alone, shared = (
            {levels: model.transfer_s(plan.sent_bytes, levels, number) for levels in set(crossed)}
            for number in (1, 2)
        )
        blocks = not scenario.overlap.pipeline
        return cls(
            scenario.schedule,
            mesh.pp,
            split.interleave,
            scenario.num_microbatches,
            [forward[number].duration_s for number in plan.model_chunks.numbers],
            [backward[number] for number in plan.model_chunks.numbers],
            [alone[levels] for levels in crossed],
            [shared[levels] for levels in crossed],
            machine.host_issue_s(scenario.host_issue_s) if blocks else 0.0,
            model.seconds(plan.receive_gather.work) if plan.receive_gather else 0.0,
            blocks,
        )

    def ends_s(self) -> tuple[list[float], list[float]]:
        """For each stage, when its last backward pass ends, and when it is done with messages."""
        last_s, start_s = [], 0.0
        for stage in range(self.num_stages):
            last_s.append(start_s + self.own_s(stage))
            start_s += self.forward_s[stage] + self.hop_s(stage)
        for stage in reversed(range(self.num_stages - 1)):
            out_s = last_s[stage + 1] + self.hop_s(stage) + self.backward[stage].duration_s
            last_s[stage] = max(last_s[stage], out_s)
        # With exchanges that block, the stage's last one sends the result of that pass.
        sends_s = [0.0, *self.message_s[:-1]] if self.blocks else [0.0] * self.num_stages
        posts_s = [0.0] + [self.post_s] * (self.num_stages - 1)
        return last_s, [sum(parts) for parts in zip(last_s, sends_s, posts_s, strict=True)]

    def hop_s(self, stage: int) -> float:
        """From the end of a pass to the start of the next, between a stage and the one after it."""
        return self.message_s[stage] + self.post_s + self.gather_s

    def own_s(self, stage: int) -> float:
        """From the start of a stage's first action to the end of its last."""
        p, n = self.num_stages, self.num_microbatches
        chunks = range(stage, p * self.num_chunks, p)
        passes_s = n * sum(self.forward_s[one] + self.backward[one].duration_s for one in chunks)
        if p == 1:
            return passes_s
        ends = (stage == 0) + (stage == p - 1)
        # Forward and backward through every chunk, but for the model's input and output.
        num_received = n * (2 * self.num_chunks - ends)
        is_first = stage == 0
        # All but the receive before the first action, and the send after the last.
        own_s = passes_s + self.gather_s * (num_received - (not is_first))
        own_s += self.post_s * 2 * (num_received - (not is_first))
        return own_s + (self.blocked_s(stage) if self.blocks else 0.0)

    def blocked_s(self, stage: int) -> float:
        """The slowest messages of a stage's exchanges between its first action and its last.

        See `schedules.exchanges.blocking_steps` for which messages share an exchange.
        """
        sizes = self.num_stages, self.num_chunks, self.num_microbatches
        warmup = num_warmup_forwards(self.schedule, stage, *sizes)
        pairs = self.num_chunks * self.num_microbatches - warmup
        if self.schedule == "interleaved":
            return self.interleaved_s(stage, warmup, pairs)
        # While warming up and cooling down every message is an exchange of its own. In between,
        # each forward pass is followed by an exchange with the next stage, each backward pass by
        # one with the stage before: there, the first only receives and the last only sends.
        before_s = self.message_s[stage - 1] if stage > 0 else 0.0
        after_s = self.message_s[stage] if stage < self.num_stages - 1 else 0.0
        num_before = 2 * warmup + (pairs + 1 if pairs else 0)
        return (num_before - 2) * before_s + (2 * warmup + pairs) * after_s

    def interleaved_s(self, stage: int, warmup: int, pairs: int) -> float:
        """The slowest messages of exchanges of the interleaved schedule.

        An exchange follows every forward pass that warms up, every pair of a forward and a
        backward pass, and every backward pass that cools down. A stage in the middle sends the
        results of all and receives what the next ones need; a pair sends two messages at once.
        """
        before_s, after_s = self.message_s[stage - 1], self.message_s[stage]
        two_s = max(self.shared_message_s[stage - 1], self.shared_message_s[stage])
        num_passes = warmup + pairs
        if stage == 0:
            # The backward passes of its first chunk send nothing: then a pair sends one message.
            both = pairs - self.last_in_turn(pairs)
            # The last backward pass is followed by no exchange.
            return both * two_s + (pairs - both + warmup + max(warmup - 1, 0)) * after_s
        if stage == self.num_stages - 1:
            # Nor do the forward passes of its last chunk, and the last of them receives nothing.
            both = pairs - self.last_in_turn(num_passes) + self.last_in_turn(warmup)
            receives = warmup if pairs else warmup - 1
            # Between the first action and the last: the last exchange is after them.
            one_s = (pairs - both + receives + warmup) * before_s
            return both * two_s + one_s - before_s
        one_s = max(before_s, after_s)
        if not pairs:
            return (2 * warmup - 2) * one_s + after_s
        return pairs * two_s + (2 * warmup - 1) * one_s

    def last_in_turn(self, num_passes: int) -> int:
        """Of a stage's first passes in one direction, those of the chunk that comes last in turn.

        Each chunk in turn takes as many microbatches as there are stages.
        """
        turns, rest = divmod(num_passes, self.num_stages * self.num_chunks)
        return turns * self.num_stages + max(0, rest - (self.num_chunks - 1) * self.num_stages)


def _with_step_s(
    plan: Plan, machine: Machine, pipeline: _Pipeline, last_s: list[float], ready_s: list[float]
) -> float:
    """The bound, from when each stage's last backward pass ends and its messages have ended."""
    steps = [machine.step_seconds(plan.step_options, one) for one in plan.stage_parameters]
    if plan.has_buckets:
        buckets_s = _buckets_s(plan, machine, pipeline)
        ready_s = [
            max(ready, last + after)
            for ready, last, after in zip(ready_s, last_s, buckets_s, strict=True)
        ]
    reduced_s = {number: machine.time(one).duration_s for number, one in plan.reductions.items()}
    if reduced_s:
        chunks = [plan.model_chunks.numbers[stage :: plan.mesh.pp] for stage in range(plan.mesh.pp)]
        ready_s = [
            max(ready, last + sum(map(reduced_s.__getitem__, own)))
            for ready, last, own in zip(ready_s, last_s, chunks, strict=True)
        ]
    ready_s = [
        ready + _sum_s(step, "average", "data_reduction", "sequence_parallel")
        for ready, step in zip(ready_s, steps, strict=True)
    ]
    holders = [stage for stage, step in enumerate(steps) if "embedding" in step]
    if holders:
        meeting_s = max(ready_s[stage] for stage in holders) + _longest_s(steps, "embedding")
        for stage in holders:
            ready_s[stage] = meeting_s
    agreed_s = max(
        ready + _sum_s(step, "to_host", "norm") for ready, step in zip(ready_s, steps, strict=True)
    )
    updates_s = max(_sum_s(step, "update", "parameter_gather", "weight_cast") for step in steps)
    return agreed_s + _longest_s(steps, "norm_reduction") + updates_s


def _buckets_s(plan: Plan, machine: Machine, pipeline: _Pipeline) -> list[float]:
    """For each stage, by how much its gradients' buckets end after its last backward pass.

    The buckets of that pass follow one another, each after its layers. The stage's parameters that
    belong to no layer are in its last one.
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


def _passes(plan: Plan, number: int, kind: Kind, saves_all: Sequence[bool]) -> Iterator[Pass]:
    """The passes of a kind that the chunk with a number may run."""
    for keeping in saves_all:
        yield plan.chunk_pass(plan.model_chunks.different[number], kind, keeping)
        if quiet := plan.passes_skipping_sync.get((number, kind, keeping)):
            yield quiet


def _time_s(time: PassTime) -> float:
    return time.duration_s


def _sum_s(step: dict[str, float], *fields: str) -> float:
    return sum(step.get(field, 0.0) for field in fields)


def _longest_s(steps: Sequence[dict[str, float]], field: str) -> float:
    return max(step.get(field, 0.0) for step in steps)
