"""What a search is asked for, and what it refuses before it begins.

Help of commands reads the request: the module imports nothing slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from simtrain.errors import InputError, Location, Problem
from simtrain.studies.objectives.registry import DEFAULT

if TYPE_CHECKING:
    from simtrain.hardware.profile import HardwareProfile
    from simtrain.scenario import Scenario
    from simtrain.studies.evaluation import Evaluator
    from simtrain.studies.search.explorer import ProgressCallback
    from simtrain.studies.search.memory_limits import MemoryLimits
    from simtrain.studies.search.space import Space
    from simtrain.studies.search.variation import Varied


@dataclass(frozen=True)
class SearchRequest:
    """What a search is asked for.

    Args:
        base: model, global batch and cluster.
        gpus: number of GPUs, or several to compare: 256,512.
        objective: name of the objective.
        context: context-parallel sizes to try: 1,2,4. Default: 1; with sequences of 32,768 tokens
            or more, or if the scenario has several, all sizes with at least 4,096 tokens per rank.
        expert: expert-parallel sizes to try: 1,8. Default: all divisors of the number of experts.
            Each expert is sharded over all tensor-parallel ranks, over none, or as in the scenario.
        max_memory: memory limit per GPU, such as 40GiB. Default and maximum: the GPU's capacity.
        margin: memory per GPU that stays free, such as 4GiB. Layouts that leave it free are ranked
            together. Default: number 1 must surely fit (the 90 % interval of its peak does).
        allow_risk: probability from 0 to 1 that a ranked layout may not fit, such as 0.3; more than
            0.5 ranks all that fit by prediction. Default: ranked layouts surely fit, or leave the
            margin free.
        top: length of the ranking.
        max_trials: if more layouts than this are legal, an optimizer proposes this many; the
            result is then not exact.
        workers: processes that compute quick bounds; with 1 this process computes them. None
            takes one per core if thousands of layouts are legal. Their number does not change the
            result. A script with several workers needs `if __name__ == "__main__":`, because
            workers import it.
        seconds: time budget. After it the search returns the best so far and how much is proved of
            it: nothing, if some legal layouts have no bound yet. Evaluations in progress are
            finished, and at least one layout that fits is simulated.
        interrupted: called repeatedly; True ends the search like a spent budget.
        on_progress: receives the phase, the steps done, the total steps, and the best so far.
        only_best: skip results that only describe the space: the runner-up, the layouts that are
            better but may not fit, and the number of other points that fit.
        vary: values by field ({"overlap.userbuffers": [True, False]}); None for all values that a
            flag or a choice can have.
        hold: fields and sections that keep the scenario's values.
        refines: also change single settings of the best layouts (`refine`), and look for fast
            layouts that need less memory.
        evaluator: an evaluator with cached kernel times of the cluster makes the search faster.
    """

    base: Scenario
    gpus: int | Sequence[int]
    objective: str = DEFAULT
    _: KW_ONLY
    context: Sequence[int] | None = None
    expert: Sequence[int] | None = None
    max_memory: str | None = None
    margin: str | None = None
    allow_risk: float | None = None
    top: int = 10
    max_trials: int | None = None
    workers: int | None = 1
    seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    on_progress: ProgressCallback = lambda phase, done, total, best: None
    only_best: bool = False
    vary: Varied = field(default_factory=dict)
    hold: Sequence[str] = ()
    refines: bool = False
    evaluator: Evaluator | None = None

    def check(self) -> None:
        """Refuse arguments that no cluster makes right.

        Raises:
            InputError: the base has a wrong value, or an argument is invalid.
        """
        from simtrain.scenario import check_values

        check_values(self.base)
        _check_schedule(self.base)
        workers = 1 if self.workers is None else self.workers
        check_counts(as_list(self.gpus), self.top, self.max_trials, workers, self._degrees)
        check_budget(self.seconds)

    def memory_limits(self, profile: HardwareProfile) -> MemoryLimits:
        """Return how much memory the layouts may use on a cluster.

        Raises:
            InputError: the cluster has too few GPUs, or a limit is invalid.
        """
        from simtrain.studies.search.memory_limits import MemoryLimits

        _check_gpus(as_list(self.gpus), profile, self.base.cluster)
        return MemoryLimits.of(
            self.max_memory, self.margin, self.allow_risk, profile, self.base.cluster
        )

    def space(self, limits: MemoryLimits) -> Space:
        """Return the layouts to search.

        Raises:
            InputError: a field is unknown, or asked for twice.
        """
        from simtrain.studies.search.space import Space
        from simtrain.studies.search.variation import check_held, check_varied

        kept, base = check_held(self.hold), self.base
        varied, gpus = check_varied(base, self.vary), tuple(as_list(self.gpus))
        space = Space(base, gpus, self.context, self.expert, varied, kept)
        _check_degrees(space, self._degrees)
        limit = self.max_memory if self.margin is None else f"{limits.limit_bytes} B"
        return space if limit is None else space.within(limit)

    @property
    def least_ranked(self) -> int:
        """Layouts to rank: the runner-up is needed to say why the best is better."""
        return self.top if self.only_best else max(self.top, 2)

    @property
    def _degrees(self) -> Degrees:
        return {"context": self.context, "expert": self.expert}


Degrees = Mapping[str, Sequence[int] | None]
"""Requested numbers of ranks, by coordinate."""


def as_list(gpus: int | Sequence[int]) -> Sequence[int]:
    """Return the numbers of GPUs as a list; a single number is a list of one."""
    return [gpus] if type(gpus) is int else gpus  # type: ignore[return-value]


def check_counts(
    gpus: Sequence[int], top: int, max_trials: int | None, workers: int, degrees: Degrees
) -> None:
    """Refuse counts that are not positive integers, and an empty list of numbers (E834)."""
    if not isinstance(gpus, Iterable) or isinstance(gpus, str | bytes):
        raise InputError.of("E834", f"gpus is {gpus!r}, not a list", fix=f"write gpus=[{gpus!s}]")
    trials = () if max_trials is None else (max_trials,)
    counts: dict[str, Sequence[object]] = {"gpus": tuple(gpus) or ((),), "top": (top,)}
    counts |= {"max_trials": trials, "workers": (workers,)}
    counts |= {name: numbers or ((),) for name, numbers in degrees.items() if numbers is not None}
    problems = [
        Problem("E834", f"{name} is {value!r}", fix="write a whole number of at least 1")
        for name, values in counts.items()
        for value in values
        if type(value) is not int or value < 1
    ]
    if problems:
        raise InputError(problems)


def check_budget(seconds: float | None) -> None:
    """Refuse a time budget that is not a finite number above 0 (E834)."""
    is_number = type(seconds) in (int, float)
    if seconds is None or (is_number and 0 < seconds < math.inf):
        return
    fix = "write a number of seconds above 0, or remove it to search to the end"
    raise InputError.of("E834", f"seconds is {seconds!r}", Location("--seconds"), fix)


def check_alone(workers: int) -> None:
    """Refuse several workers for a search by proposals (E835)."""
    if workers > 1:
        raise InputError.of(
            "E835",
            f"a search with --trials cannot have {workers} workers",
            Location("--workers"),
            "remove --workers, or remove --trials to search every layout",
            "each proposal of --trials depends on the results of the proposals before it",
        )


def _check_schedule(base: Scenario) -> None:
    """Refuse a schedule that is a file (E837)."""
    if base.schedule_file is not None:
        message = f"the schedule is the file {base.schedule}"
        reason = "a search changes the numbers of stages, chunks and microbatches; a file cannot"
        fix = "search with --set schedule=1f1b; then simulate the best layout with a file for it"
        place = base.positions.of_value(("schedule",))
        raise InputError.of("E837", message, place, fix, reason)


def _check_degrees(space: Space, degrees: Degrees) -> None:
    """Refuse a number of ranks that is set both by --set and by its own option (E834)."""
    from simtrain.studies.search.space import FIELDS

    problems = [
        Problem(
            "E834",
            f"{FIELDS[name]} is set by --set and by --{name}",
            Location(f"--{name}"),
            fix=f"remove one of them: --{name} 4 alone searches 4, --{name} 1,2,4 all three",
        )
        for name, numbers in degrees.items()
        if numbers is not None and name in space.held
    ]
    if problems:
        raise InputError(problems)


def _check_gpus(gpus: Sequence[int], profile: HardwareProfile, name: str) -> None:
    """Refuse numbers of GPUs that the cluster with this name or path does not have (E832)."""
    cluster = profile.cluster
    problems = [
        Problem(
            "E832",
            f"{number} GPUs are more than the {cluster.num_gpus} of {name} "
            f"({cluster.num_nodes.value} nodes of {cluster.gpus_per_node.value})",
            Location("--gpus"),
            reason="every rank of the job needs its own GPU",
            fix=f"write at most {cluster.num_gpus}, or name another cluster: --set cluster=NAME",
        )
        for number in gpus
        if number > cluster.num_gpus
    ]
    if problems:
        raise InputError(problems)
