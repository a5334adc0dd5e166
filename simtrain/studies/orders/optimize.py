"""Search an order of a pipeline's actions: list schedules, then local search on the best of them.

Every order is simulated by the engine, with asynchronous messages, as PyTorch's runtime runs the
schedules of files. The result is never slower than the best named schedule of the same sizes that
fits, which is simulated as its own framework runs it.
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from simtrain.engine import DeadlockError
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import memory_report, peak_bytes
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.parts import PassPart
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.iteration.run_plan import run_iteration
from simtrain.scenario import RULES, Scenario, check_scenario
from simtrain.schedules import NAMED, Kind, NewOrder, Schedule
from simtrain.schedules.stage_placement import StagePlacement, common_placements
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.orders.exact import check_size, exact_order
from simtrain.studies.orders.list_scheduling import (
    OrderProblem,
    Policy,
    larger_caps,
    list_schedule,
    policies,
)
from simtrain.studies.orders.local_search import Evaluated, climb
from simtrain.studies.orders.result import NamedOrder, OptimizedOrder
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.simulation import checked_profile

TRIES = 300
"""Moves of the local search, by default."""
_STARTS = 3
"""List schedules from which the local search starts."""
Progress = Callable[[str, int, int, str], None]


def optimize_order(
    scenario: Scenario,
    *,
    splits: bool | None = None,
    exact: bool = False,
    tries: int = TRIES,
    seed: int = 0,
    on_progress: Progress = lambda phase, done, total, best: None,
) -> OptimizedOrder:
    """Find a fast order of the actions of a scenario's pipeline that fits in memory.

    Layers, chunks per stage and microbatches stay as they are. Placements that are tried: looped,
    and with several chunks back and forth (a V).

    Args:
        scenario: the scenario; its schedule is only compared.
        splits: whether backward passes are split into input and weight gradients; None tries both.
        exact: also solve for the best order; small pipelines only.
        tries: moves of the local search.
        seed: of the local search.
        on_progress: takes the phase, steps done, all steps, and the best time so far.

    Raises:
        InputError: the pipeline has a single stage (E856), is too large for `exact` (E857), or the
            scenario breaks a rule.
    """
    if scenario.parallelism.pipeline == 1:
        raise InputError.of(
            "E856",
            "the pipeline has a single stage, so there is no order to search",
            fix="set parallelism.pipeline to 2 or more",
        )
    evaluator = Evaluator(allow_oom=True, breakdowns=False)
    machine = evaluator.machine_of(scenario)
    profile = checked_profile(scenario, machine.model.profile)
    limit = profile.gpu.memory_capacity.value
    named = (*_named_orders(scenario, evaluator, limit),)
    with tempfile.TemporaryDirectory() as folder:
        bases = [*_bases(scenario, machine, profile, splits, Path(folder))]
        if exact:
            for base in bases:
                check_size(base.problem)
        best, num_tried = _search(bases, limit, tries, random.Random(seed), on_progress)
        is_exact = False
        if exact:
            solved, is_exact = _solve(bases, limit, on_progress)
            num_tried += len(bases)
            if solved and solved.evaluated.iteration_time_s < best.evaluated.iteration_time_s:
                best = solved
        bound_s = min(Bounds(machine).iteration_s(base.plan) for base in bases)
    named_best = next((order for order in named if order.fits), None)
    result = OptimizedOrder(
        best.evaluated.schedule,
        best.origin,
        best.evaluated.iteration_time_s,
        best.evaluated.peak_bytes,
        limit,
        bound_s,
        named,
        num_tried,
        seed,
        is_exact,
    )
    is_best = named_best is None or (
        result.fits and result.iteration_time_s <= named_best.iteration_time_s
    )
    if named_best is None or is_best:
        return result
    return replace(
        result,
        schedule=_schedule_named(scenario, named_best.name),
        origin=named_best.name,
        iteration_time_s=named_best.iteration_time_s,
        peak_bytes=named_best.peak_bytes,
        bound_s=min(bound_s, named_best.iteration_time_s),
    )


@dataclass(frozen=True, slots=True)
class FirstOrder:
    """An order that the search begins with.

    Args:
        origin: in words.
        build: builds it; None if it cannot be built.
        policy: of a list schedule.
    """

    origin: str
    build: Callable[[], Schedule | None]
    policy: Policy | None = None

    @classmethod
    def of_policy(cls, problem: OrderProblem, policy: Policy) -> FirstOrder:
        """Return a list schedule."""
        return cls("list scheduling", partial(list_schedule, problem, policy), policy)


@dataclass(frozen=True, eq=False)
class _Base:
    """The plan of a placement and of whole or split backward passes, whose order is searched."""

    plan: Plan
    machine: Machine
    profile: HardwareProfile
    problem: OrderProblem
    _shared: dict[str, object] = field(default_factory=dict)

    def evaluate(self, schedule: Schedule, limit_bytes: float) -> Evaluated | None:
        """Simulate an order; None if it cannot run or needs more memory."""
        plan = replace(self.plan, new_order=NewOrder(schedule))
        # What does not depend on the order is computed once.
        vars(plan).update(self._parts())
        peak = peak_bytes(plan, self.profile)
        if peak > limit_bytes:
            return None
        try:
            iteration = run_iteration(plan, self.machine)
        except DeadlockError:
            return None
        first, last = iteration.tasks.first, iteration.tasks.last
        starts_s, ends_s = iteration.timeline.start_s[first], iteration.timeline.end_s[last]
        before_s = np.concatenate([[0.0], ends_s[:-1]])
        before_s[schedule.rank_starts[:-1]] = 0.0
        idle_s = np.maximum(starts_s - before_s, 0.0)
        return Evaluated(schedule, iteration.timeline.makespan_s, peak, idle_s)

    def rooms_bytes(self, limit: int) -> tuple[float, ...]:
        """Return [ranks], most bytes of saved tensors with which each rank's peak is in a limit."""
        report, schedule = memory_report(self.plan, self.profile), self.plan.schedule
        per_tensor = 1 + self.profile.memory.fragmentation.value
        held_bytes = self.problem.most_held_bytes(schedule)
        return tuple(
            most + (limit - peak) / per_tensor
            for most, peak in zip(held_bytes, report.peaks_bytes, strict=True)
        )

    def with_larger_caps(self, first: FirstOrder) -> Iterator[FirstOrder]:
        """Yield the list schedules between an order's cap and the next larger one."""
        for policy in larger_caps(first.policy) if first.policy else ():
            yield FirstOrder.of_policy(self.problem, policy)

    def first_orders(self) -> Iterator[FirstOrder]:
        """Yield the orders that the search begins with."""
        placement, splits = self.problem.placement, self.problem.splits
        sizes = placement.num_ranks, placement.num_chunks, self.problem.num_microbatches
        for policy in policies(splits=splits, has_chunks=placement.num_chunks > 1):
            yield FirstOrder.of_policy(self.problem, policy)
        for name, family in NAMED.items():
            is_alike = family.placement(*sizes[:2]) == placement and not family.merges
            is_alike = is_alike and family.splits_backwards is splits
            if is_alike and family.allows_chunks(sizes[1]) and not any(family.problems(*sizes)):
                build = partial(family.build, *sizes)
                yield FirstOrder(f"{name} with asynchronous messages", build)

    def _parts(self) -> dict[str, object]:
        if not self._shared:
            names = "options", "model_chunks", "stage_parameters", "step_options", "steps"
            self._shared.update({name: getattr(self.plan, name) for name in (*names, "contents")})
        return self._shared


@dataclass(frozen=True, eq=False)
class _Candidate:
    """An order with what it was made from."""

    base: _Base
    evaluated: Evaluated
    origin: str
    first: FirstOrder | None = None


def _search(
    bases: list[_Base], limit: int, tries: int, rng: random.Random, on_progress: Progress
) -> tuple[_Candidate, int]:
    """Return the fastest order that fits, or else the one with the smallest peak."""
    candidates: list[_Candidate] = []
    large: list[_Candidate] = []
    seen: set[bytes] = set()

    def consider(base: _Base, first: FirstOrder) -> None:
        """Simulate an order that was not simulated before."""
        schedule = first.build()
        if schedule is None or (key := _bytes_of(schedule)) in seen:
            return
        seen.add(key)
        evaluated = base.evaluate(schedule, math.inf)
        if evaluated is not None:
            fits = evaluated.peak_bytes <= limit
            (candidates if fits else large).append(_Candidate(base, evaluated, first.origin, first))

    drawn = [(base, first) for base in bases for first in base.first_orders()]
    for done, (base, first) in enumerate(drawn):
        on_progress("list schedules", done, len(drawn), _best_words(candidates))
        consider(base, first)
    # More memory is faster, so the best cap is the largest that fits.
    for fast in sorted(candidates, key=_seconds_of)[:_STARTS]:
        for first in fast.base.with_larger_caps(fast.first) if fast.first else ():
            consider(fast.base, first)
    num_tried = len(candidates) + len(large)
    if not candidates:
        return min(large, key=lambda order: order.evaluated.peak_bytes), num_tried
    candidates.sort(key=_seconds_of)
    best, starts = candidates[0], candidates[:_STARTS]
    for number, start in enumerate(starts):
        before, share = tries * number // len(starts), tries * (number + 1) // len(starts)
        words = f"{best.evaluated.iteration_time_s:.4g} s"
        climbed = climb(
            start.evaluated,
            partial(start.base.evaluate, limit_bytes=limit),
            share - before,
            rng,
            lambda done, before=before, words=words: on_progress(  # type: ignore[misc]
                "local search", before + done, tries, words
            ),
        )
        if climbed.iteration_time_s < best.evaluated.iteration_time_s:
            best = _Candidate(start.base, climbed, "local search")
    return best, num_tried + tries


def _solve(bases: list[_Base], limit: int, on_progress: Progress) -> tuple[_Candidate | None, bool]:
    """Return the best order of all bases that fits, and whether each was solved to the end."""
    solutions, are_proved = [], True
    for done, base in enumerate(bases):
        on_progress("solving", done, len(bases), "")
        answer = exact_order(base.problem, base.rooms_bytes(limit))
        are_proved &= answer is not None and answer[1]
        if answer and (evaluated := base.evaluate(answer[0], limit)):
            solutions.append(_Candidate(base, evaluated, "exact"))
    best = min(solutions, key=_seconds_of, default=None)
    return best, are_proved


def _seconds_of(order: _Candidate) -> float:
    return order.evaluated.iteration_time_s


def _best_words(orders: list[_Candidate]) -> str:
    times = [order.evaluated.iteration_time_s for order in orders]
    return f"{min(times):.4g} s" if times else ""


def _bytes_of(schedule: Schedule) -> bytes:
    columns = schedule.placement.steps, schedule.rank_starts
    arrays = (*map(np.asarray, columns), schedule.virtual_stage, schedule.kind, schedule.microbatch)
    return b"|".join(array.tobytes() for array in arrays)


def _bases(
    scenario: Scenario,
    machine: Machine,
    profile: HardwareProfile,
    splits: bool | None,
    folder: Path,
) -> Iterator[_Base]:
    """Yield the plans whose orders are searched, one per placement and split."""
    split = scenario.parallelism
    placements = common_placements(split.pipeline, split.interleave)
    for number, placement in enumerate(dict.fromkeys(placements)):
        for is_split in (False, True) if splits is None else (splits,):
            start = _first_order(placement, scenario.num_microbatches, splits=is_split)
            file = folder / f"{number}-{is_split}.csv"
            file.write_text(start.to_csv())
            changes = {
                "schedule": str(file),
                "overlap.pipeline": True,
                "overlap.merged_passes": False,
                "overlap.align_gradient_reduction": None,
                "overlap.align_parameter_gather": None,
            }
            searched = scenario.replace(changes)
            check_scenario(searched)
            plan = Plan.of(searched, profile.cluster.domains_of(searched.num_gpus))
            plan = replace(plan, new_order=NewOrder(start))
            yield _Base(plan, machine, profile, _problem(plan, machine))


def _first_order(placement: StagePlacement, num_microbatches: int, *, splits: bool) -> Schedule:
    """Return an order that can run, for passes of equal time."""
    stages = placement.num_virtual_stages
    kinds: tuple[Kind, ...] = ("F", "I", "W") if splits else ("F", "B")
    ones = dict.fromkeys(kinds, (1.0,) * stages)
    sizes = (0.0,) * stages, (1,) * stages, (0,) * stages
    problem = OrderProblem(placement, num_microbatches, ones, *sizes)
    schedule = list_schedule(problem, Policy(2.0, True, False, False))
    assert schedule is not None, "a cap of two microbatches per stage stops no rank"
    return schedule


def _problem(plan: Plan, machine: Machine) -> OrderProblem:
    """Return the durations and sizes of a plan's passes and messages."""
    seconds, numbers = IterationSeconds.of(plan, machine), plan.model_chunks.numbers
    kinds: tuple[Kind, ...] = plan.order.kinds
    of_kind: dict[Kind, tuple[float, ...]] = {
        kind: tuple(seconds.of_part(PassPart(number, kind, saves_all=False)) for number in numbers)
        for kind in kinds
    }
    structure, ranks = seconds.structure, plan.order.placement.ranks
    messages = []
    for stage, (rank, following) in enumerate(itertools.pairwise(ranks)):
        lower = rank if plan.order.placement.steps[stage] > 0 else following
        states = structure.sent_states[stage]
        transfer = structure.transfer(1, structure.levels_crossed[lower], states)
        messages.append(0.0 if rank == following else seconds.of_part(transfer))
    memories = {
        (number, kind): pass_memory(plan.passes[number, kind, False])
        for number in set(numbers)
        for kind in kinds
    }
    saved = tuple(memories[number, "F"].remaining_bytes for number in numbers)
    left = tuple(memories[number, "I"].remaining_bytes if "I" in kinds else 0 for number in numbers)
    sizes = plan.order.placement, plan.order.num_microbatches
    return OrderProblem(*sizes, of_kind, (*messages, 0.0), saved, left)


def _named_orders(scenario: Scenario, evaluator: Evaluator, limit_bytes: int) -> list[NamedOrder]:
    """Simulate the named schedules that are legal, the fastest first."""
    orders = []
    for name, family in NAMED.items():
        split = scenario.parallelism
        sizes = split.pipeline, split.interleave, scenario.num_microbatches
        if not family.allows_chunks(split.interleave) or any(family.problems(*sizes)):
            continue
        named = scenario.replace({"schedule": name, "overlap.pipeline": None})
        if any(rule.check(named) for rule in RULES):
            continue
        evaluation = evaluator.evaluate(named)
        assert evaluation.run is not None, "the evaluator simulates what does not fit, too"
        peak = evaluation.peak_bytes
        orders.append(NamedOrder(name, evaluation.run.iteration_time_s, peak, peak <= limit_bytes))
    return sorted(orders, key=lambda order: order.iteration_time_s)


def _schedule_named(scenario: Scenario, name: str) -> Schedule:
    split = scenario.parallelism
    return NAMED[name].build(split.pipeline, split.interleave, scenario.num_microbatches)
