"""Simulate a scenario on a loaded machine, with the fastest recompute that fits if that is open.

Of `recompute: auto` and `keep_microbatches: auto` memory is computed first, and only variants that
fit are simulated. If a strategy has several sizes, the smallest one that fits is searched: more
recompute never needs more memory.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from simtrain.base.plain_data import Number, Sentence, with_whole_numbers
from simtrain.base.values import dataclass
from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import MemoryReport
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import RULES, RecomputePolicy, Rule, Scenario, check_scenario, check_values
from simtrain.scenario.combination_rules import NO_FUSED_ATTENTION, NO_HOST_LINK
from simtrain.scenario.expert_rules import dispatcher_rule
from simtrain.scenario.precision_rules import products_rule, userbuffer_node_rule
from simtrain.scenario.rules import size_rule
from simtrain.scenario.section import DEFAULT_MODULES
from simtrain.schedules import most_outstanding
from simtrain.units import format_bytes, format_seconds
from simtrain.workload.tape import Block


def result_on(planned: PlannedIteration, choice: PolicyChoice | None) -> Result:
    """Return the result of a planned iteration, whose recompute may have been chosen."""
    return Result(planned.timeline, choice.why) if choice else planned.result


def memory_on(scenario: Scenario, machine: Machine) -> MemoryReport:
    """Compute each stage's peak memory on a machine, without simulating time."""
    check_values(scenario)
    planned, choice = plan_on(scenario, machine)
    # A choice has simulated time, so that the peaks have their times too.
    return planned.result.memory if choice else planned.memory


def plan_on(
    scenario: Scenario, machine: Machine, layers: Sequence[Block] | None = None
) -> tuple[PlannedIteration, PolicyChoice | None]:
    """Check a scenario and plan its iteration; choose its recompute if that is open."""
    check_on(scenario, machine.profile)
    if not scenario.recompute.is_open:
        return PlannedIteration.of(scenario, machine, layers=layers), None
    choice = choose(scenario, machine, layers)
    return choice.chosen, choice


def refuse_program(base: Scenario) -> None:
    """Refuse a scenario with a recorded program (E941)."""
    if base.program is None:
        return
    reason = "a recording has the ops of the layout in which the program ran"
    fix = "record the program with other arguments and numbers of GPUs, and compare the scenarios"
    message = f"no layouts can be searched for the recorded program {base.program}"
    raise InputError.of("E941", message, base.positions.of_value(("program",)), fix, reason)


def check_on(scenario: Scenario, profile: HardwareProfile) -> None:
    """Check a scenario's rules, those of a cluster too."""
    check_scenario(scenario)
    check_scenario(scenario, rules_on(profile), kept=RULES)


def rules_on(profile: HardwareProfile) -> tuple[Rule, ...]:
    """Return what a cluster can run and its profile has timings for; the first is its size."""
    cluster = profile.cluster
    sizes = cluster.gpus_per_node.value, cluster.num_nodes.value, cluster.nvlink_gpus
    lacks = profile.host_link is None, profile.fused_attention is None
    return _rules_of(*sizes, *lacks, profile.product_types, profile.dispatcher_names)


@functools.lru_cache(maxsize=64)
def _rules_of(
    gpus_per_node: int,
    num_nodes: int,
    nvlink_gpus: int,
    lacks_host_link: bool,
    lacks_fused_attention: bool,
    product_types: tuple[str, ...],
    dispatchers: tuple[str, ...],
) -> tuple[Rule, ...]:
    of_sizes = size_rule(gpus_per_node, num_nodes), userbuffer_node_rule(nvlink_gpus)
    of_kernels = products_rule(product_types), dispatcher_rule(dispatchers)
    absent = [NO_HOST_LINK] * lacks_host_link + [NO_FUSED_ATTENTION] * lacks_fused_attention
    return *of_sizes, *of_kernels, *absent


# ------------------------------------------------------------------------- recompute


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The chosen recompute policy."""

    chosen: PlannedIteration
    trials: tuple[PlannedIteration, ...]

    @property
    def words(self) -> Sentence:
        """The policy, and the passes that it keeps per stage."""
        plan = self.chosen.plan
        kept, words = plan.num_saved_per_stage or (), policy_words(plan.scenario.recompute)
        if not any(kept):
            return with_whole_numbers(words)
        windows = most_outstanding(plan.schedule)
        numbers = [f"{number} of {window}" for number, window in zip(kept, windows, strict=True)]
        where = f"{numbers[0]} on the first stage, {numbers[-1]} on the last"
        return with_whole_numbers(f"{words}, keeping {where}")

    @property
    def why(self) -> Sentence:
        """The choice, its reason, and what it needs."""
        fits = "the fastest that fits" if self.chosen.fits else "nothing fits, this needs the least"
        peak_bytes, time_s = self.chosen.fit.peak_bytes, self.chosen.iteration_time_s
        peak = Number(peak_bytes, format_bytes(peak_bytes))
        time = Number(time_s, format_seconds(time_s))
        return Sentence(self.words, f" ({fits} of {len(self.trials)} tried): ", peak, ", ", time)


def choose(
    scenario: Scenario, machine: Machine, layers: Sequence[Block] | None = None
) -> PolicyChoice:
    """Resolve `auto` in a scenario's recompute: choose the fastest policy that fits.

    If none fits, the policy with the smallest peak is chosen, and its report says so.
    """
    search, policy = _Search(scenario, machine, layers), scenario.recompute
    is_whole = policy.strategy == "auto"
    trials = tuple(search.strategies()) if is_whole else (search.keeping_most(policy),)
    smallest = min(trials, key=lambda trial: trial.fit.peak_bytes)
    fitting = [trial for trial in trials if trial.fits] or [smallest]
    return PolicyChoice(min(fitting, key=lambda trial: trial.iteration_time_s), trials)


@dataclass(frozen=True, slots=True)
class _Search:
    """Trials of recompute policies of one scenario."""

    scenario: Scenario
    machine: Machine
    layers: Sequence[Block] | None

    def trial(
        self, policy: RecomputePolicy, kept: tuple[int, ...] | None = None
    ) -> PlannedIteration:
        """Try another policy, with `kept` forward passes without recompute per stage."""
        changed = self.scenario.replace({"recompute": policy})
        return PlannedIteration.of(changed, self.machine, kept, self.layers)

    def strategies(self) -> Iterator[PlannedIteration]:
        """Try all candidates for the fastest; the last resorts only if none of them fits."""
        trials = [self.trial(RecomputePolicy())]
        if not trials[0].fits:
            trials += [self.keeping_most(RecomputePolicy(strategy="selective"))]
            trials += self.smallest_block()
            trials += [self.keeping_most(RecomputePolicy(strategy="full"))]
        yield from trials
        if not any(trial.fits for trial in trials):
            yield from map(self.trial, last_resorts(self.scenario))

    def keeping_most(self, policy: RecomputePolicy) -> PlannedIteration:
        """Try the policy with as many forward passes kept per stage as fit."""
        if self.scenario.parallelism.pipeline == 1:
            return self.trial(policy)
        policy = policy.model_copy(update={"keep_microbatches": "auto"})
        trial = functools.cache(lambda kept: self.trial(policy, kept))
        nothing = trial((0,) * self.scenario.parallelism.pipeline)
        windows = most_outstanding(nothing.plan.schedule).tolist()
        return trial(
            most_that_fit(
                windows, lambda kept: trial(kept).memory.peaks_bytes, nothing.memory.capacity_bytes
            )
        )

    def smallest_block(self) -> list[PlannedIteration]:
        """Find the smallest number of recomputed layers per chunk that fits, if it is below all."""
        trial = functools.cache(lambda number: self.trial(first_layers(number)))
        numbers = range(1, max(self.scenario.chunk_sizes))
        # All numbers after the first that fits fit too.
        smallest = bisect_left(numbers, True, key=lambda number: trial(number).fits)
        return [trial(number) for number in numbers[smallest : smallest + 1]]


PeaksOf = Callable[[tuple[int, ...]], Sequence[int]]
"""Returns the peak bytes per stage for these numbers of kept passes per stage."""


def most_that_fit(
    windows: Sequence[int], peaks_of: PeaksOf, capacity_bytes: int
) -> tuple[int, ...]:
    """Find the largest number of kept passes per stage that fits; 0 if even 0 does not fit.

    Kept passes of a stage change only its own peak and never lower it, so that all stages are
    bisected at the same time.
    """
    most, above = [0] * len(windows), [window + 1 for window in windows]
    while any(high - low > 1 for low, high in zip(most, above, strict=True)):
        guesses = tuple((low + high) // 2 for low, high in zip(most, above, strict=True))
        for stage, peak_bytes in enumerate(peaks_of(guesses)):
            (most if peak_bytes <= capacity_bytes else above)[stage] = guesses[stage]
    return tuple(most)


def first_layers(number: int) -> RecomputePolicy:
    """Return the policy that recomputes this number of layers of each chunk in full."""
    return RecomputePolicy(strategy="full", method="block", num_layers=number)


def last_resorts(scenario: Scenario) -> Iterator[RecomputePolicy]:
    """Yield policies that save less than one input per layer, by longer units."""
    if scenario.model.mtp_num_layers:
        return  # Rule E345 refuses longer units.
    sizes = scenario.chunk_sizes
    # Of lengths with equal numbers of units, the shortest recomputes the fewest layers at once.
    shortest = {
        tuple(-(-layers // length) for layers in sizes): length
        for length in range(max(sizes), 1, -1)
    }
    for length in shortest.values():
        yield RecomputePolicy(strategy="full", num_layers=length)


def policy_words(policy: RecomputePolicy) -> str:
    """Describe a policy, without the microbatches that it keeps."""
    layers = f"{policy.num_layers} layer{'s' * (policy.num_layers > 1)}"
    details = {
        f"modules {', '.join(policy.modules)}": policy.modules != DEFAULT_MODULES,
        f"the first {layers} of each chunk": policy.method == "block",
        f"saving {', '.join(policy.saved_ops)}": policy.strategy == "ops",
        f"units of {layers}": policy.method == "uniform" and policy.num_layers > 1,
    }
    return ", ".join([policy.strategy, *(words for words, holds in details.items() if holds)])
