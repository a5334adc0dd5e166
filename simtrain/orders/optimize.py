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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from simtrain.engine import DeadlockError
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.parts import PassPart
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.orders.exact import check_size, exact_order
from simtrain.orders.list_scheduling import (
    OrderProblem,
    Policy,
    larger_caps,
    list_schedule,
    policies,
)
from simtrain.orders.local_search import SimulatedOrder, climb
from simtrain.orders.result import NamedOrder, OptimizedOrder
from simtrain.scenario import RULES, Scenario, check_scenario
from simtrain.schedules import NAMED, Kind, Schedule
from simtrain.schedules.stage_placement import StagePlacement, common_placements
from simtrain.studies.evaluation import Evaluator
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
        InputError: the pipeline has a single stage (E856) or is too large for `exact` (E857),
            `keep_microbatches` is auto (E858), or the scenario breaks a rule.
    """
    _check(scenario)
    evaluator = Evaluator(allow_oom=True, breakdowns=False)
    scenario = evaluator.evaluate(scenario).scenario  # with the recompute that `auto` chooses
    machine = evaluator.machine_of(scenario)
    profile = checked_profile(scenario, machine.model.profile)
    limit = profile.gpu.memory_capacity.value
    named = _named_orders(scenario, machine, profile)
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
            best = min([best, *solved], key=_seconds_of)
    plans = [*(base.plan for base in bases), *(plan for _, plan in named)]
    result = OptimizedOrder(
        best.evaluated.schedule,
        best.origin,
        best.evaluated.iteration_time_s,
        best.evaluated.peak_bytes,
        limit,
        min(map(Bounds(machine).iteration_s, plans)),
        tuple(order for order, _ in named),
        num_tried,
        seed,
        is_exact,
    )
    return _or_named(result, named)


def _check(scenario: Scenario) -> None:
    """Refuse a scenario whose passes have no order to search."""
    if scenario.parallelism.pipeline == 1:
        raise InputError.of(
            "E856",
            "the pipeline has a single stage, so there is no order to search",
            fix="set parallelism.pipeline to 2 or more",
        )
    if scenario.parallelism.vocabulary_split:
        raise InputError.of(
            "E452",
            f"parallelism.vocabulary is {scenario.parallelism.vocabulary}, but orders are searched "
            "without vocabulary passes",
            fix="remove parallelism.vocabulary",
        )
    if scenario.program is not None:
        raise InputError.of(
            "E956",
            f"the memory of new orders is not known for the recorded pipeline {scenario.program}",
            fix="compare orders: simtrain compare SCENARIO --change schedule=gpipe",
            reason="a search keeps to a limit of memory, which it adds up from the model's layers",
        )
    if scenario.overlap.optimizer_post_validation:
        raise InputError.of(
            "E450",
            "overlap.optimizer_post_validation is true, but a new order has no runtime with it",
            fix="remove overlap.optimizer_post_validation",
        )
    if not scenario.schedule_family.flushes:
        raise InputError.of(
            "E984",
            f"schedule {scenario.schedule} runs iterations into each other, but the orders that "
            "are searched end each iteration with a flush of the pipeline",
            fix="set schedule to 1f1b",
        )
    if (slices := scenario.parallelism.sequence_slices) > 1:
        raise InputError.of(
            "E455",
            f"parallelism.sequence_slices is {slices}, but the orders that are searched run whole "
            "sequences",
            fix="set parallelism.sequence_slices to 1 and schedule to 1f1b",
        )
    if scenario.recompute.keep_microbatches == "auto":
        raise InputError.of(
            "E858",
            "recompute.keep_microbatches is auto, which is chosen for one order of the passes",
            fix="write a number, such as recompute.keep_microbatches: 0",
        )


def _or_named(result: OptimizedOrder, named: Sequence[tuple[NamedOrder, Plan]]) -> OptimizedOrder:
    """Return the result, or with the fastest named order that fits if that one is better."""
    best = next(((order, plan) for order, plan in named if order.fits), None)
    is_better = best and (not result.fits or best[0].iteration_time_s < result.iteration_time_s)
    if not best or not is_better:
        return result
    order, plan = best
    return replace(
        result,
        schedule=plan.schedule,
        origin=order.name,
        iteration_time_s=order.iteration_time_s,
        peak_bytes=order.peak_bytes,
        is_exact=False,
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

    def evaluate(self, schedule: Schedule, limit_bytes: float) -> SimulatedOrder | None:
        """Simulate an order; None if it cannot run or needs more memory."""
        planned = PlannedIteration(self.plan.with_order(schedule), self.machine)
        try:
            peak = planned.fit.peak_bytes
            if peak > limit_bytes:
                return None
            iteration = planned.timeline
        except DeadlockError:
            return None
        first, last = iteration.tasks.first, iteration.tasks.last
        starts_s, ends_s = iteration.timeline.start_s[first], iteration.timeline.end_s[last]
        before_s = np.concatenate([[0.0], ends_s[:-1]])
        before_s[schedule.rank_starts[:-1]] = 0.0
        idle_s = np.maximum(starts_s - before_s, 0.0)
        return SimulatedOrder(schedule, iteration.time_s, peak, idle_s)

    def rooms_bytes(self, limit: int) -> tuple[float, ...]:
        """Return [ranks], most bytes of saved tensors with which each rank's peak is in a limit."""
        report = PlannedIteration(self.plan, self.machine).memory
        schedule = self.plan.schedule
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
            is_alike = is_alike and family.splits_backwards is splits and family.flushes
            if is_alike and family.allows_chunks(sizes[1]) and not any(family.problems(*sizes)):
                build = partial(family.build, *sizes)
                yield FirstOrder(f"{name} with asynchronous messages", build)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """An order with what it was made from."""

    base: _Base
    evaluated: SimulatedOrder
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


def _solve(bases: list[_Base], limit: int, on_progress: Progress) -> tuple[list[_Candidate], bool]:
    """Return the best order of each base that fits, and whether each was solved to the end."""
    solutions, are_proved = [], True
    for done, base in enumerate(bases):
        on_progress("solving", done, len(bases), "")
        answer = exact_order(base.problem, base.rooms_bytes(limit))
        are_proved &= answer is not None and answer[1]
        if answer and (evaluated := base.evaluate(answer[0], limit)):
            solutions.append(_Candidate(base, evaluated, "exact"))
    return solutions, are_proved


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
                "overlap.deferred_output_gradients": 0,
                "overlap.align_gradient_reduction": None,
                "overlap.align_parameter_gather": None,
            }
            searched = scenario.replace(changes)
            check_scenario(searched)
            # The file is read now: nothing asks for it after the search's folder is gone.
            plan = _plan(searched, profile).with_order(start)
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
        (number, kind): pass_memory(plan.passes[number, kind, False, 0])
        for number in set(numbers)
        for kind in kinds
    }
    saved = tuple(memories[number, "F"].remaining_bytes for number in numbers)
    left = tuple(memories[number, "I"].remaining_bytes if "I" in kinds else 0 for number in numbers)
    sizes = plan.order.placement, plan.order.num_microbatches
    return OrderProblem(*sizes, of_kind, (*messages, 0.0), saved, left)


def _named_orders(
    scenario: Scenario, machine: Machine, profile: HardwareProfile
) -> list[tuple[NamedOrder, Plan]]:
    """Simulate the named schedules that are legal, each as its framework runs it; fastest first."""
    split, orders = scenario.parallelism, []
    sizes = split.pipeline, split.interleave, scenario.num_microbatches
    for name, family in NAMED.items():
        has_order = family.allows_chunks(split.interleave) and not any(family.problems(*sizes))
        if not (family.flushes and has_order):
            continue
        named = scenario.replace({"schedule": name, "overlap.pipeline": None})
        if any(rule.check(named) for rule in RULES):
            continue
        planned = PlannedIteration.of(named, machine)
        time_s, peak = planned.iteration_time_s, planned.fit.peak_bytes
        fits = peak <= machine.profile.gpu.memory_capacity.value
        orders.append((NamedOrder(name, time_s, peak, fits), planned.plan))
    return sorted(orders, key=lambda pair: pair[0].iteration_time_s)


def _plan(scenario: Scenario, profile: HardwareProfile) -> Plan:
    return Plan.of(scenario, profile.cluster.domains_of(scenario.num_gpus))
