"""The best order of a small pipeline, by a mixed-integer linear program (HiGHS, through scipy).

Each action has a start. For two actions of a rank that do not depend on each other, a binary says
which one is first. Microbatches are equal, so actions of one kind on one virtual stage run in their
order. Before a forward pass, the tensors that its rank holds are a sum over these binaries, which
the limit bounds. Messages take their time, and do not wait for each other.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np

from simtrain.base.extras import require
from simtrain.errors import InputError
from simtrain.orders.list_scheduling import OrderProblem
from simtrain.schedules import Action, Kind, Schedule

MOST_ACTIONS = 24
"""Most actions of a rank; more have too many orders."""
SECONDS = 60.0
"""Time limit of the solver."""


def check_size(problem: OrderProblem) -> None:
    """Refuse a pipeline that is too large to solve.

    Raises:
        InputError: a rank has too many actions (E857).
    """
    chunks = problem.placement.num_chunks * len(problem.seconds)
    if (number := chunks * problem.num_microbatches) > MOST_ACTIONS:
        most = MOST_ACTIONS // chunks
        raise InputError.of(
            "E857",
            f"each stage has {number} actions, but the exact search takes at most {MOST_ACTIONS}",
            fix=f"use at most {most} microbatches, or search without --exact"
            if most
            else "search without --exact",
            reason="the number of orders grows exponentially",
        )


def exact_order(
    problem: OrderProblem, limits_bytes: tuple[float, ...], seconds: float = SECONDS
) -> tuple[Schedule, bool] | None:
    """Solve for the order with the shortest time from the first action to the last.

    Args:
        problem: durations and sizes.
        limits_bytes: [ranks], most bytes of saved tensors on each rank.
        seconds: time limit of the solver.

    Returns:
        The order, and whether it is proved to be the best; None if none was found in time.

    Raises:
        InputError: scipy is missing (E701).
    """
    require("simtrain schedule optimize --exact", "scipy")
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    model = _Model(problem, limits_bytes)
    num_starts, num_columns = len(model.actions), model.num_columns
    cost = np.zeros(num_columns)
    cost[model.makespan] = 1.0
    is_binary = np.zeros(num_columns)
    is_binary[num_starts + 1 :] = 1
    upper = np.where(is_binary == 1, 1.0, np.inf)
    data, rows, columns = (np.array(values) for values in zip(*model.entries, strict=True))
    matrix = csr_matrix((data, (rows, columns)), shape=(len(model.lower), num_columns))
    answer = milp(
        cost,
        integrality=is_binary,
        bounds=Bounds(np.zeros(num_columns), upper),
        constraints=LinearConstraint(matrix, np.array(model.lower), np.inf),
        options={"time_limit": seconds},
    )
    if answer.x is None:
        return None
    return model.schedule(answer.x), answer.status == 0


class _Model:
    """The columns and rows of the program: matrix · columns >= lower."""

    def __init__(self, problem: OrderProblem, limits_bytes: tuple[float, ...]) -> None:
        self.problem = problem
        kinds: tuple[Kind, ...] = tuple(problem.seconds)
        stages, microbatches = range(problem.placement.num_virtual_stages), problem.num_microbatches
        self.actions = [
            Action(stage, kind, microbatch)
            for stage in stages
            for kind in kinds
            for microbatch in range(microbatches)
        ]
        self.number = {action: number for number, action in enumerate(self.actions)}
        self.makespan = len(self.actions)
        self.num_columns = self.makespan + 1
        self.before: dict[tuple[Action, Action], int] = {}
        self.entries: list[tuple[float, int, int]] = []
        self.lower: list[float] = []
        # Run one after another, the actions and messages take this time.
        self.horizon = (
            2
            * microbatches
            * (sum(map(sum, problem.seconds.values())) + 2 * sum(problem.message_s))
        )
        self.add_waits()
        for rank, limit in enumerate(limits_bytes):
            self.add_rank(rank, limit)

    def add(self, terms: dict[int, float], least: float) -> None:
        """Add the row: the sum of coefficient times column is at least `least`."""
        self.entries += [(value, len(self.lower), column) for column, value in terms.items()]
        self.lower.append(least)

    def seconds(self, action: Action) -> float:
        """Return the time of an action."""
        return self.problem.seconds[action.kind][action.virtual_stage]

    def add_waits(self) -> None:
        """Let each action wait for its inputs, and the end for all actions."""
        for action in self.actions:
            end = {self.makespan: 1.0, self.number[action]: -1.0}
            self.add(end, self.seconds(action))
            for needed, message_s in self.inputs(action):
                start = {self.number[action]: 1.0, self.number[needed]: -1.0}
                self.add(start, self.seconds(needed) + message_s)
            if action.microbatch:
                earlier = action._replace(microbatch=action.microbatch - 1)
                start = {self.number[action]: 1.0, self.number[earlier]: -1.0}
                self.add(start, self.seconds(earlier))

    def inputs(self, action: Action) -> list[tuple[Action, float]]:
        """Return the actions whose results an action reads, with the times of their messages."""
        problem, stage = self.problem, action.virtual_stage
        if action.kind == "W":
            return [(action._replace(kind="I"), 0.0)]
        if action.kind == "F":
            before = action._replace(virtual_stage=stage - 1)
            return [(before, problem.message_s[stage - 1])] if stage else []
        needed = [(action._replace(kind="F"), 0.0)]
        if stage + 1 < problem.placement.num_virtual_stages:
            needed.append((action._replace(virtual_stage=stage + 1), problem.message_s[stage]))
        return needed

    def add_rank(self, rank: int, limit_bytes: float) -> None:
        """Run a rank's actions one at a time, with a limit of what they hold."""
        stages = self.problem.placement.virtual_stages[rank]
        actions = [action for action in self.actions if action.virtual_stage in stages]
        for first, second in itertools.combinations(actions, 2):
            is_alike = first[:2] == second[:2]
            if is_alike:
                continue
            column = self.num_columns
            self.num_columns += 1
            self.before[first, second] = column
            starts = self.number[first], self.number[second]
            # second >= first + its time, unless the binary is 0; and the other way round.
            later = {starts[1]: 1.0, starts[0]: -1.0, column: -self.horizon}
            self.add(later, self.seconds(first) - self.horizon)
            earlier = {starts[0]: 1.0, starts[1]: -1.0, column: self.horizon}
            self.add(earlier, self.seconds(second))
        grows, scale = self.problem.growth_bytes, max(self.problem.saved_bytes)
        for forward in (action for action in actions if action.kind == "F"):
            terms: dict[int, float] = defaultdict(float)
            most = grows(forward) / scale
            for other in actions:
                change = grows(other) / scale
                if other == forward or not change:
                    continue
                if other[:2] == forward[:2]:
                    most += change * (other.microbatch < forward.microbatch)
                elif (other, forward) in self.before:
                    terms[self.before[other, forward]] -= change
                else:
                    terms[self.before[forward, other]] += change
                    most += change
            self.add(terms, most - limit_bytes / scale)

    def schedule(self, values: Any) -> Schedule:
        """Return the order of the starts of a solution."""
        placement = self.problem.placement
        starts = sorted(zip(values[: self.makespan].tolist(), self.actions, strict=True))
        ranks = [
            [action for _, action in starts if action.virtual_stage in stages]
            for stages in placement.virtual_stages
        ]
        return Schedule.of("custom", placement, self.problem.num_microbatches, ranks)
