"""What a search is asked for, and what it refuses before it begins.

Help of commands reads the request: the module imports nothing slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from simtrain.base.values import KW_ONLY, dataclass, field
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.hardware.likeness import OwnRun
    from simtrain.hardware.profile import HardwareProfile
    from simtrain.scenario import Scenario
    from simtrain.studies.evaluation import Evaluator
    from simtrain.studies.search.exact_search import ProgressCallback
    from simtrain.studies.search.space import Space

Varied = Mapping[str, Sequence[Any] | None]
"""Values by field; None for all that a search can try."""


@dataclass(frozen=True)
class SearchRequest:
    """What a search is asked for.

    Args:
        base: model, global batch and cluster.
        gpus: number of GPUs; with `tokens`, also several to compare: 256,512.
        top: length of the ranking.
        seconds: time budget. After it the search returns the best so far and how much is proved of
            it: nothing, if some legal layouts have no bound yet. Evaluations in progress are
            finished, and at least one layout that fits is simulated. `refines` has the last 30 %.
        interrupted: called repeatedly; True ends the search like a spent budget.
        on_progress: receives the phase, the steps done, the total steps, and the best so far.
        only_best: skip the layouts that are better but may not fit.
        vary: values by field of a layout ({"batch.micro": [1, 2]}); None for all schedules.
        hold: fields and sections that keep the scenario's values.
        tokens: also search clusters and numbers of GPUs for a training of so many: "300B". On each
            of them the fastest layout is also the cheapest. What follows is for `tokens` alone.
        clusters: names or paths of hardware profiles; by default that of the base. A cluster with
            fewer GPUs than the largest of `gpus` gets more nodes.
        days: maximum training time, in days.
        budget: maximum price: 2M, 500K, 2M USD.
        goodput: as for `cost`, but 1 by default.
        price: price per GPU of all clusters, such as "2.5 USD/h", instead of each profile's.
        refines: also change single settings of the best layouts.
        anchors: one's own runs, which anchor the intervals: the best layouts are then ranked by the
            time to expect.
        evaluator: an evaluator with cached kernel times of the cluster makes the search faster.
    """

    base: Scenario
    gpus: int | Sequence[int]
    _: KW_ONLY
    top: int = 10
    seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    on_progress: ProgressCallback = lambda phase, done, total, best: None
    only_best: bool = False
    vary: Varied = field(default_factory=dict)
    hold: Sequence[str] = ()
    tokens: int | str | None = None
    clusters: Sequence[str] = ()
    days: float | None = None
    budget: str | None = None
    goodput: float | Literal["auto"] = 1.0
    price: str | None = None
    refines: bool = False
    anchors: Sequence[OwnRun] = ()
    evaluator: Evaluator | None = None

    def check(self) -> None:
        """Refuse arguments that no cluster makes right.

        Raises:
            InputError: the base has a wrong value or a file as schedule (E837), or an argument is
                invalid.
        """
        from simtrain.scenario import check_values

        check_values(self.base)
        if self.base.schedule_file is not None:
            raise InputError.of(
                "E837",
                f"the schedule is the file {self.base.schedule}",
                self.base.positions.of_value(("schedule",)),
                "search with --set schedule=1f1b; then simulate the best layout with a file for it",
                "a search changes the numbers of stages, chunks and microbatches; a file cannot",
            )
        gpus = as_list(self.gpus)
        check_counts({"gpus": gpus, "top": (self.top,)})
        if len(gpus) > 1:
            fix = "write one, or add tokens=300e9 to compare numbers of GPUs"
            raise InputError.of("E834", "a layout has one number of GPUs", Location("--gpus"), fix)
        check_budget(self.seconds)

    def check_gpus(self, profile: HardwareProfile) -> None:
        """Refuse numbers of GPUs that the cluster of this profile does not have (E832)."""
        cluster = profile.cluster
        if (number := self.num_gpus) > cluster.num_gpus:
            raise InputError.of(
                "E832",
                f"{number} GPUs are more than the {cluster.num_gpus} of {self.base.cluster} "
                f"({cluster.num_nodes.value} nodes of {cluster.gpus_per_node.value})",
                Location("--gpus"),
                f"write at most {cluster.num_gpus}, or name another cluster: --set cluster=NAME",
                "every rank of the job needs its own GPU",
            )

    @property
    def num_gpus(self) -> int:
        return as_list(self.gpus)[0]

    def space(self) -> Space:
        """Return the layouts to search.

        Raises:
            InputError: a field is unknown, or asked for twice; the recompute is held open (E838).
        """
        from simtrain.studies.search.space import Space, check_held, check_varied

        varied = check_varied(self.base, self.vary)
        space = Space(self.base, self.num_gpus, varied, check_held(self.hold))
        if "recompute" in space.held and self.base.recompute.is_open:
            fix, place = "remove it: a search tries the policies", Location("recompute")
            raise InputError.of("E838", "auto is a choice among policies", place, fix)
        return space


def as_list(gpus: int | Sequence[int]) -> Sequence[int]:
    """Return the numbers of GPUs as a list; a single number is a list of one."""
    return [gpus] if type(gpus) is int else gpus  # type: ignore[return-value]


def check_counts(counts: Mapping[str, Sequence[object]]) -> None:
    """Refuse counts that are not positive integers, and empty lists of numbers (E834)."""
    for name, values in counts.items():
        if not isinstance(values, Iterable) or isinstance(values, str | bytes):
            fix = f"write {name}=[{values!s}]"
            raise InputError.of("E834", f"{name} is {values!r}, not a list", fix=fix)
        for value in tuple(values) or ((),):
            if type(value) is not int or value < 1:
                fix = "write a whole number of at least 1"
                raise InputError.of("E834", f"{name} is {value!r}", fix=fix)


def check_budget(seconds: float | None) -> None:
    """Refuse a time budget that is not a finite number above 0 (E834)."""
    if seconds is None or (type(seconds) in (int, float) and 0 < seconds < math.inf):
        return
    fix = "write a number of seconds above 0, or remove it to search to the end"
    raise InputError.of("E834", f"seconds is {seconds!r}", Location("--seconds"), fix)
