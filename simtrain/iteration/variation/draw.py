"""One draw of an iteration: where its ranks are, and the factors of its durations.

Sources of variation set the factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from simtrain.base.mesh import Group, Mesh
from simtrain.base.values import dataclass
from simtrain.engine.compiled import Floats, Ints
from simtrain.iteration.plan import Plan
from simtrain.iteration.variation.response import Cause, Response

LEAST_FACTOR = 0.1
"""Factors of durations are at least this: a normal distribution has no end, a duration has."""


@dataclass(frozen=True, slots=True)
class RankPosition:
    """The place of a rank: its pipeline stage and its replica."""

    stage: int
    replica: int


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The ranks of an iteration.

    The ranks of a stage and a replica, along tensor and context parallelism, wait for each other in
    every layer, so a pass takes all of them the same time. Expert parallelism joins the replicas
    that exchange tokens in the same way.

    Args:
        mesh: of the layers that are not experts.
        expert_replicas: neighbouring replicas that exchange tokens for experts; 1 without.
        shard_replicas: neighbouring replicas that hold one copy of the sharded states.
    """

    mesh: Mesh
    expert_replicas: int
    shard_replicas: int

    @classmethod
    def of(cls, plan: Plan) -> RankLayout:
        """Return the layout of a plan."""
        mesh, split = plan.mesh, plan.scenario.parallelism
        members = mesh.size("tp", "cp")
        exchanging = split.expert * split.ranks_of_expert if plan.scenario.model.experts else 1
        return cls(
            mesh,
            min(mesh.dp, -(-exchanging // members)),
            min(mesh.dp, plan.scenario.memory.shard_over or mesh.dp),
        )

    @property
    def members(self) -> int:
        """Ranks of a stage and a replica."""
        return self.mesh.size("tp", "cp")

    def place(self, rank: int) -> RankPosition:
        """Return the place of a rank of the mesh."""
        mesh = self.mesh
        stage, replica = (rank // mesh.stride(axis) % mesh.size(axis) for axis in ("pp", "dp"))
        return RankPosition(stage, replica)

    def ranks_on_node(self, rank: int) -> range:
        """Return all ranks on the node of a rank."""
        node = rank // self.mesh.gpus_per_node
        first = node * self.mesh.gpus_per_node
        return range(first, min(first + self.mesh.gpus_per_node, self.mesh.num_ranks))

    def replicas_joined_by(self, group: Group) -> int:
        """Return how many neighbouring replicas a collective of a group joins."""
        if "dp" in group.axes:
            is_shard_group = {*group.axes} <= {"cp", "dp"} and not group.joins_shards
            return self.shard_replicas if is_shard_group else self.mesh.dp
        return self.expert_replicas if "ep" in group.axes else 1

    def replicas_to_simulate(self, differing: Iterable[int], *, all_differ: bool) -> Ints:
        """Return the replicas that are simulated: those that differ, and one more for the rest.

        Replicas that exchange tokens with one that differs wait for it, so they are simulated too.
        """
        replicas, size = self.mesh.dp, self.expert_replicas
        if all_differ:
            return np.arange(replicas)
        groups = {replica // size for replica in differing}
        rest = next((group for group in range(-(-replicas // size)) if group not in groups), None)
        groups |= set() if rest is None else {rest}
        return np.array(
            [
                replica
                for group in sorted(groups)
                for replica in range(group * size, min((group + 1) * size, replicas))
            ]
        )


@dataclass(frozen=True, eq=False)
class Speeds:
    """What differs between ranks in every iteration, as factors of durations.

    Args:
        layout: the ranks.
        replicas: [replicas], the numbers of the replicas that are simulated.
        kernels: [stages, replicas], of kernels.
        network: [stages, replicas], of what leaves the node.
    """

    layout: RankLayout
    replicas: Ints
    kernels: Floats
    network: Floats

    @classmethod
    def equal(cls, layout: RankLayout, replicas: Ints) -> Speeds:
        """Return ranks without a difference."""
        shape = layout.mesh.pp, len(replicas)
        return cls(layout, replicas, np.ones(shape), np.ones(shape))

    def replica_index(self, replica: int) -> int | None:
        """Return the place of a replica among those that are simulated."""
        places = np.flatnonzero(self.replicas == replica)
        return int(places[0]) if len(places) else None


@dataclass(frozen=True, eq=False)
class RespondingTasks:
    """The tasks that follow a cause, grouped by their response.

    Args:
        tasks: [n], numbers of the tasks; those of equal responses are neighbours.
        responses: the different responses, each with its range of `tasks`.
    """

    tasks: Ints
    responses: Sequence[tuple[Response, slice]]

    @classmethod
    def of(cls, responses: Sequence[Response], part_of: Ints) -> RespondingTasks:
        """Group tasks, given the response of each part and the part of each task."""
        numbers = {response: number for number, response in enumerate(dict.fromkeys(responses))}
        number_of_part = np.array([numbers[response] for response in responses], np.intp)
        number_of_task, tasks, ranges = number_of_part[part_of], [np.zeros(0, np.intp)], []
        start = 0
        for response, number in numbers.items():
            if response.is_constant:
                continue
            of_response = np.flatnonzero(number_of_task == number)
            tasks.append(of_response)
            ranges.append((response, slice(start, start + len(of_response))))
            start += len(of_response)
        return cls(np.concatenate(tasks), ranges)

    def ratios(self, factors: Floats) -> Floats:
        """Return [n, replicas], the ratios of durations at factors of the same shape."""
        ratios = np.empty_like(factors)
        for response, places in self.responses:
            ratios[places] = response.at(factors[places])
        return ratios


@dataclass(frozen=True, eq=False)
class DrawnTasks:
    """The tasks of an iteration as sources of variation see them.

    Args:
        layout: the ranks.
        replicas: [replicas], the numbers of the replicas that are simulated.
        duration_s: [tasks], durations without variation.
        stage_of: [tasks], the stage that runs a task; -1 for a collective over several stages.
        computing: the tasks on the compute streams of stages.
        responding: the tasks that follow each cause.
        leaders: [tasks of the cause "collectives", replicas], the first replica of the group that
            runs a task together.
        speeds: what differs in every iteration.
        network: [tasks that follow the network, replicas], factors of every iteration; None if all
            are 1.
    """

    layout: RankLayout
    replicas: Ints
    duration_s: Floats
    stage_of: Ints
    computing: Ints
    responding: dict[Cause, RespondingTasks]
    leaders: Ints
    speeds: Speeds
    network: Floats | None = None

    @property
    def num_replicas(self) -> int:
        """Replicas that are simulated."""
        return len(self.replicas)

    @cached_property
    def kernel_speeds(self) -> Floats:
        """[tasks that follow kernels, replicas], factors of every iteration."""
        of_tasks: Floats = self.speeds.kernels[self.stage_of[self.responding["kernels"].tasks]]
        return of_tasks

    @cached_property
    def computed_until_s(self) -> Floats:
        """[computing tasks], their summed durations up to the end of each."""
        return np.cumsum(self.duration_s[self.computing])

    def durations_s(self, draw: Draw) -> Floats:
        """Return [tasks, replicas], the durations in a draw."""
        ratios = np.ones((len(self.duration_s), self.num_replicas))
        factors = {"kernels": draw.kernels, "collectives": draw.collectives}
        for cause, of_cause in factors.items():
            if of_cause is not None:
                responding = self.responding[cause]  # type: ignore[index]
                ratios[responding.tasks] += responding.ratios(of_cause) - 1.0
        if self.network is not None:
            responding = self.responding["network"]
            ratios[responding.tasks] += responding.ratios(self.network) - 1.0
        # Factors far below their means could make a sum of responses negative.
        durations_s = self.duration_s[:, None] * np.maximum(ratios, 0.0)
        return durations_s if draw.added_s is None else durations_s + draw.added_s


@dataclass(eq=False)
class Draw:
    """The factors of one iteration, which sources of variation change.

    Args:
        tasks: the tasks.
        kernels: [tasks that follow kernels, replicas], factors.
        collectives: [tasks that follow collectives, replicas], factors.
        added_s: [tasks, replicas], time that is added; None for none.
    """

    tasks: DrawnTasks
    kernels: Floats
    collectives: Floats | None = None
    added_s: Floats | None = None

    @classmethod
    def usual(cls, tasks: DrawnTasks) -> Draw:
        """Return the iteration in which only speeds differ."""
        return cls(tasks, tasks.kernel_speeds)

    def add(self, task: Ints, replica: Ints, seconds: Floats) -> None:
        """Add time to tasks of replicas."""
        if self.added_s is None:
            self.added_s = np.zeros((len(self.tasks.duration_s), self.tasks.num_replicas))
        np.add.at(self.added_s, (task, replica), seconds)
