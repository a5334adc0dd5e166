"""Orders by list scheduling: each rank, whenever it is free, runs the best action that can start.

Backward passes come first, since they free memory and let earlier stages go on. A forward pass may
start if the tensors that its rank holds stay below a cap. Weight gradients that are split off fill
the time in which nothing else can start, or make room. Policies differ in the cap and in these
preferences; the engine decides between their orders.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simtrain.schedules import KINDS, Action, Kind, Schedule
from simtrain.schedules.stage_placement import StagePlacement

CAPS = tuple(2 ** (quarters / 4) for quarters in range(-6, 9))
"""Caps relative to the activations of one microbatch per stage on all chunks of a rank."""


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """Durations and sizes of the actions of a pipeline.

    Args:
        placement: the rank of each virtual stage.
        num_microbatches: number of microbatches.
        seconds: [virtual stages] by kind: F, and B or both I and W.
        message_s: [virtual stages], time of the message from each one to the next, or back.
        saved_bytes: [virtual stages], what a forward pass saves.
        left_bytes: [virtual stages], what its input gradients leave to the weight gradients.
    """

    placement: StagePlacement
    num_microbatches: int
    seconds: dict[Kind, tuple[float, ...]]
    message_s: tuple[float, ...]
    saved_bytes: tuple[int, ...]
    left_bytes: tuple[int, ...]

    @property
    def splits(self) -> bool:
        """Whether weight gradients are actions of their own."""
        return "W" in self.seconds

    def growth_bytes(self, action: Action) -> int:
        """Return by how much an action changes what its rank holds."""
        saved, left = self.saved_bytes[action.virtual_stage], self.left_bytes[action.virtual_stage]
        return {"F": saved, "B": -saved, "I": left - saved, "W": -left}[action.kind]

    def most_held_bytes(self, schedule: Schedule) -> tuple[int, ...]:
        """Return [ranks], the most that each rank holds in an order."""
        return tuple(
            max(itertools.accumulate(map(self.growth_bytes, rank))) for rank in schedule.ranks
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """Preferences of a list schedule.

    Args:
        cap: most bytes on each rank, relative to one microbatch per stage on all of its chunks.
        deep_first: of several forward passes, the one of the last chunk starts first.
        forwards_first: forward passes start before backward passes, up to the cap.
        weights_soon: weight gradients start before forward passes.
    """

    cap: float
    deep_first: bool
    forwards_first: bool
    weights_soon: bool


def policies(*, splits: bool, has_chunks: bool) -> Iterator[Policy]:
    """Yield the policies that can give different orders."""
    flags = False, True
    axes = flags if has_chunks else (True,), flags, flags if splits else (False,)
    for cap, *preferences in itertools.product(CAPS, *axes):
        yield Policy(cap, *preferences)


def larger_caps(policy: Policy) -> Iterator[Policy]:
    """Yield the policy with some caps up to the next one of `CAPS`."""
    for sixteenths in (1, 2, 3):
        yield replace(policy, cap=policy.cap * 2 ** (sixteenths / 16))


def list_schedule(problem: OrderProblem, policy: Policy) -> Schedule | None:
    """Return the order that a policy gives, or None if its cap stops all ranks."""
    return _Scheduler(problem, policy).run()


class _Scheduler:
    """Runs one list schedule, event by event."""

    def __init__(self, problem: OrderProblem, policy: Policy) -> None:
        self.problem, self.policy = problem, policy
        placement = problem.placement
        self.rank_of, self.last = placement.ranks, placement.num_virtual_stages - 1
        ranks = range(placement.num_ranks)
        of_ranks = placement.virtual_stages
        self.cap = [
            policy.cap
            * placement.num_ranks
            * sum(problem.saved_bytes[stage] for stage in of_ranks[rank])
            for rank in ranks
        ]
        # A forward pass leaves room for the later chunks of its microbatch, so that none waits for
        # memory that only its own backward pass can free.
        self.reserve = [0] * placement.num_virtual_stages
        for stages in of_ranks:
            for place, stage in enumerate(stages):
                later = stages[place + 1 :]
                self.reserve[stage] = sum(problem.saved_bytes[other] for other in later)
        self.saved = [0] * placement.num_ranks
        self.free_at = [0.0] * placement.num_ranks
        self.orders: list[list[Action]] = [[] for _ in ranks]
        self.ready: dict[Kind, list[deque[Action]]] = {
            kind: [deque() for _ in range(placement.num_virtual_stages)] for kind in KINDS
        }
        self.events: list[tuple[float, int, int, Action | None]] = []
        self.numbers = itertools.count()

    def run(self) -> Schedule | None:
        """Return the order of all ranks, or None if no rank can go on before the end."""
        problem = self.problem
        for microbatch in range(problem.num_microbatches):
            self.ready["F"][0].append(Action(0, "F", microbatch))
        self.wake(0.0, self.rank_of[0])
        while self.events:
            now, _, rank, action = heapq.heappop(self.events)
            if action is not None:
                self.ready[action.kind][action.virtual_stage].append(action)
            if self.free_at[rank] <= now and (following := self.choose(rank)):
                self.start(following, rank, now)
        actions = 3 if problem.splits else 2
        wanted = actions * problem.placement.num_virtual_stages * problem.num_microbatches
        if sum(map(len, self.orders)) < wanted:
            return None
        return Schedule.of("custom", problem.placement, problem.num_microbatches, self.orders)

    def wake(self, at_s: float, rank: int, arrived: Action | None = None) -> None:
        """Let a rank look for its next action at a time, when an action can start."""
        heapq.heappush(self.events, (at_s, next(self.numbers), rank, arrived))

    def choose(self, rank: int) -> Action | None:
        """Return the best action that can start now, if there is one."""
        stages = self.problem.placement.virtual_stages[rank]
        policy = self.policy
        deepest_first = stages[::-1]
        backward = self.first(("I", "B"), deepest_first)
        weights = self.first(("W",), deepest_first)
        forwards = deepest_first if policy.deep_first else stages
        forward = self.first(("F",), [stage for stage in forwards if self.has_room(stage, rank)])
        waits_for_room = forward is None and self.first(("F",), stages) is not None
        order = [forward, backward] if policy.forwards_first else [backward, forward]
        if policy.weights_soon or waits_for_room:
            order.insert(1, weights)
        return next((action for action in (*order, weights) if action), None)

    def first(self, kinds: tuple[Kind, ...], stages: tuple[int, ...] | list[int]) -> Action | None:
        """Return the action that has waited longest on the first of these virtual stages."""
        for stage in stages:
            for kind in kinds:
                if self.ready[kind][stage]:
                    return self.ready[kind][stage][0]
        return None

    def has_room(self, stage: int, rank: int) -> bool:
        """Return whether a forward pass stays below the cap; an empty rank may always start one."""
        needed = self.problem.saved_bytes[stage] + self.reserve[stage]
        return not self.saved[rank] or self.saved[rank] + needed <= self.cap[rank]

    def start(self, action: Action, rank: int, now: float) -> None:
        """Run an action, and tell the ranks that wait for it."""
        problem, stage, kind = self.problem, action.virtual_stage, action.kind
        self.ready[kind][stage].popleft()
        self.orders[rank].append(action)
        end = now + problem.seconds[kind][stage]
        self.free_at[rank] = end
        self.saved[rank] += problem.growth_bytes(action)
        backward: Kind = "I" if problem.splits else "B"
        if kind == "F" and stage < self.last:
            self.send(action._replace(virtual_stage=stage + 1), end + problem.message_s[stage])
        elif kind == "F":
            self.send(action._replace(kind=backward), end)
        elif kind != "W" and stage > 0:
            self.send(action._replace(virtual_stage=stage - 1), end + problem.message_s[stage - 1])
        if kind == "I":
            self.send(action._replace(kind="W"), end)
        self.wake(end, rank)

    def send(self, action: Action, at_s: float) -> None:
        """Let an action be ready on its rank at a time."""
        self.wake(at_s, self.rank_of[action.virtual_stage], action)
