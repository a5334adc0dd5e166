"""An iteration that is drawn: its tasks, its sources of variation, and its times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.random import SFC64, Generator, SeedSequence

from simtrain.base.values import dataclass, replace
from simtrain.engine import Timeline
from simtrain.engine.compiled import Floats, Ints
from simtrain.engine.replicas import ReplicaProgram, run_replicas
from simtrain.hardware.sections import VariationEntries
from simtrain.iteration.programs.iteration_tasks import (
    EMBEDDING,
    LINK_STEPS,
    NUM_GROUPS,
    SHARED,
    IterationTasks,
    IterationTimeline,
)
from simtrain.iteration.variation.draw import Draw, DrawnTasks, RankLayout, RespondingTasks, Speeds
from simtrain.iteration.variation.response import CAUSES, Cause, Factors, Responses
from simtrain.iteration.variation.sources import SOURCES, Source
from simtrain.schedules.stage_placement import ring_neighbour
from simtrain.workload.work import Collective

_STEPS = 4
"""Factors between 1 and the largest one at which passes are simulated."""
_MOST_NUMBERS = 8_000_000
"""Durations of tasks that are kept at once, which bounds the memory of many draws."""
_PERSISTENT, _OF_DRAW = range(2)

NumberedSource = tuple[int, Source]
"""A source and its number in `SOURCES`, which decides its random numbers."""


@dataclass(frozen=True, eq=False)
class DrawnIteration:
    """An iteration with its sources of variation.

    Args:
        iteration: the iteration without variation.
        sources: what varies, with the number of each in the registry.
        tasks: the tasks, as sources see them.
        group_sizes: [tasks], as in `ReplicaProgram`.
    """

    iteration: IterationTimeline
    sources: tuple[NumberedSource, ...]
    tasks: DrawnTasks
    group_sizes: Ints

    @classmethod
    def of(cls, iteration: IterationTimeline, sources: Sequence[NumberedSource], seed: int) -> Self:
        """Find what each source changes; `seed` draws what differs in every iteration."""
        tasks = iteration.tasks
        layout = RankLayout.of(iteration.seconds.plan)
        differing = {
            replica for _, source in sources for replica in source.differing_replicas(layout)
        }
        all_differ = any(source.replicas_differ for _, source in sources)
        replicas = layout.replicas_to_simulate(differing, all_differ=all_differ)
        speeds = Speeds.equal(layout, replicas)
        for number, source in sources:
            source.persist(speeds, _generator(seed, _PERSISTENT, number))
        responses = Responses(iteration.seconds, _factors(source for _, source in sources))
        joined = _replicas_joined(tasks, responses, layout)
        group_sizes = np.where(joined >= layout.mesh.dp, len(replicas), joined)[tasks.part_of]
        responding = {
            cause: RespondingTasks.of(
                [responses.of(part, cause) for part in tasks.parts], tasks.part_of
            )
            for cause in CAUSES
        }
        collectives = responding["collectives"].tasks
        sizes = group_sizes[collectives][:, None]
        drawn = DrawnTasks(
            layout,
            replicas,
            effective_durations(iteration.timeline),
            _stages(tasks),
            np.flatnonzero(tasks.graph.stream_of < tasks.num_stages),
            responding,
            np.arange(len(replicas)) // sizes * sizes,
            speeds,
        )
        drawn = replace(drawn, network=_network_factors(tasks, drawn))
        return cls(iteration, tuple(sources), drawn, group_sizes)

    @property
    def num_simulated_ranks(self) -> int:
        """Ranks that are simulated each: all members of the stages of the simulated replicas."""
        layout = self.tasks.layout
        return layout.mesh.pp * layout.members * self.tasks.num_replicas

    def times_s(self, seed: int, draws: range, *, waits: bool = True) -> Floats:
        """Draw iterations.

        Args:
            seed: of the random numbers; each draw and source has its own.
            draws: numbers of the draws.
            waits: replicas wait for each other; if not, the result is [draws, replicas].

        Returns:
            [draws], the time of each iteration: that of the replica that takes longest.
        """
        replicas = self.tasks.num_replicas
        size = max(1, _MOST_NUMBERS // (len(self.group_sizes) * replicas))
        times_s = []
        for first in range(draws.start, draws.stop, size):
            part = range(first, min(first + size, draws.stop))
            durations_s = np.empty((len(self.group_sizes), len(part), replicas))
            for place, number in enumerate(part):
                durations_s[:, place] = self._draw(seed, number)
            program = ReplicaProgram(self.iteration.tasks.graph, self.group_sizes, durations_s)
            _, end_s = run_replicas(program if waits else program.alone())
            of_replicas: Floats = end_s.max(axis=0)
            times_s.append(of_replicas.max(axis=1) if waits else of_replicas)
        return np.concatenate(times_s)

    def _draw(self, seed: int, number: int) -> Floats:
        draw = Draw.usual(self.tasks)
        for place, source in self.sources:
            source.disturb(draw, _generator(seed, _OF_DRAW, number, place))
        return self.tasks.durations_s(draw)


def sources_of(
    iteration: IterationTimeline, entries: VariationEntries
) -> tuple[NumberedSource, ...]:
    """Return the sources of variation of a scenario, with their numbers in the registry."""
    plan = iteration.seconds.plan
    made = (source.of(plan.scenario.variation, entries, plan) for source in SOURCES)
    return tuple((number, source) for number, source in enumerate(made) if source is not None)


def effective_durations(timeline: Timeline) -> Floats:
    """Return [tasks], durations with which longest paths give the starts and ends of a timeline.

    Tasks that share links keep the slowdown that they have without variation.
    """
    if timeline.program.link_loads is None:
        return timeline.program.duration_s
    start_s, end_s = timeline.start_s, timeline.end_s
    duration_s: Floats = end_s - start_s
    # The rounded difference may miss the end by one unit in the last place.
    for _ in range(2):
        reached_s = start_s + duration_s
        towards = np.where(reached_s < end_s, math.inf, 0.0)
        duration_s = np.where(reached_s == end_s, duration_s, np.nextafter(duration_s, towards))
    return duration_s


def _generator(seed: int, *key: int) -> Generator:
    return Generator(SFC64(SeedSequence(seed, spawn_key=key)))


def _factors(sources: Iterable[Source]) -> Factors:
    ranges: dict[Cause, list[tuple[float, ...]]] = {cause: [] for cause in CAUSES}
    for source in sources:
        for cause, factors in source.factors().items():
            ranges[cause].append(factors)
    return {cause: _grid(factors) for cause, factors in ranges.items()}


def _grid(ranges: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    least = math.prod(min(factors) for factors in ranges)
    most = math.prod(max(factors) for factors in ranges)
    grid = {1.0, *(factor for factors in ranges for factor in factors)}
    if least < 1:
        grid |= {least, math.sqrt(least)}
    if most > 1:
        grid |= {most ** (step / _STEPS) for step in range(1, _STEPS + 1)}
    return tuple(sorted(grid))


def _replicas_joined(tasks: IterationTasks, responses: Responses, layout: RankLayout) -> Ints:
    """Return [parts], how many neighbouring replicas run the tasks of a part together."""
    return np.array(
        [
            max(
                (
                    layout.replicas_joined_by(op.work.group)
                    for op in responses.ops_of(part)
                    if isinstance(op.work, Collective)
                ),
                default=1,
            )
            for part in tasks.parts
        ],
        np.intp,
    )


def _stages(tasks: IterationTasks) -> Ints:
    """Return [tasks], the stage of each task's stream; -1 for a collective over stages."""
    group, stage = np.divmod(tasks.graph.stream_of, tasks.num_stages)
    stages: Ints = np.where(group < NUM_GROUPS, stage, -1)
    return stages


def _network_factors(tasks: IterationTasks, drawn: DrawnTasks) -> Floats | None:
    """Return [tasks that follow the network, replicas], the factors of the slowest end."""
    network = drawn.speeds.network
    if (network == 1.0).all():
        return None
    of_tasks = drawn.responding["network"].tasks
    group, stage = np.divmod(tasks.graph.stream_of[of_tasks], tasks.num_stages)
    is_of_stage = group < NUM_GROUPS
    sender = np.where(is_of_stage, stage, 0)
    step = LINK_STEPS[np.where(is_of_stage, group, 0)]
    receiver = ring_neighbour(sender, step, tasks.num_stages)
    factors = np.maximum(network[sender], network[receiver])
    embedding = NUM_GROUPS * tasks.num_stages + SHARED.index(EMBEDDING)
    is_embedding = tasks.graph.stream_of[of_tasks] == embedding
    factors[~is_of_stage] = network.max(axis=0)
    if is_embedding.any():
        factors[is_embedding] = network[tasks.holds_embedding].max(axis=0)
    return factors
