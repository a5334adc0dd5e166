"""What a plan of a training is asked for. Help of commands reads it: it imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from simtrain.studies.cost_request import Contract, CostRequest
from simtrain.studies.objectives.registry import DEFAULT
from simtrain.studies.search.request import as_list

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.cost import CostLimits, Terms
    from simtrain.studies.planning.layout import Combination
    from simtrain.studies.search.explorer import ProgressCallback


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is asked for: a training run, clusters, numbers of GPUs and limits.

    Args:
        base: model and global batch; see `search` for the fields that keep their values.
        tokens: number of training tokens: 300_000_000_000 or "300B".
        clusters: names or paths of hardware profiles. A cluster with fewer GPUs than the largest
            of `gpus` gets more nodes.
        gpus: a number of GPUs, or several.
        days: maximum training time, in days.
        budget: maximum price: 2M, 500K, 2M USD.
        goodput, contract, pue, electricity, co2: as for `simtrain.cost`.
        price: price per GPU of all clusters, such as "2.5 USD/h", instead of each profile's.
        objective: name of the objective that sorts the rows.
        workers: processes, each searching one combination at a time. Their number does not change
            the plan. A script with several workers needs `if __name__ == "__main__":`, because
            workers import it.
        seconds: time budget, shared by the combinations; see `search` for the result of a search
            that it ends.
        interrupted: polled; True ends the plan with the rows found so far. Workers finish their
            current searches unless Ctrl-C reaches them too.
        on_progress: receives the current search, the number of finished combinations, the number
            of all combinations, and the best row so far.
    """

    base: Scenario
    tokens: int | str
    clusters: Sequence[str]
    gpus: int | Sequence[int]
    _: KW_ONLY
    days: float | None = None
    budget: str | None = None
    goodput: float | Literal["auto"] = 1.0
    price: str | None = None
    contract: Contract | None = None
    pue: float = 1.0
    electricity: str | None = None
    co2: float | None = None
    objective: str = DEFAULT
    workers: int = 1
    seconds: float | None = None
    interrupted: Callable[[], bool] = lambda: False
    on_progress: ProgressCallback = lambda phase, done, total, best: None

    @property
    def terms(self) -> Terms:
        """Tokens, prices and power."""
        from simtrain.studies.cost import Terms

        request = CostRequest(
            self.base,
            self.tokens,
            goodput=self.goodput,
            price=self.price,
            contract=self.contract,
            pue=self.pue,
            electricity=self.electricity,
            co2=self.co2,
        )
        return Terms.read(request)

    @property
    def limits(self) -> CostLimits:
        """Maximum days and price."""
        from simtrain.studies.cost import CostLimits

        return CostLimits.read(self.days, self.budget)

    @property
    def combinations(self) -> list[Combination]:
        """Each cluster with each number of GPUs, in the order of the request."""
        from simtrain.studies.changes.change import combinations_of
        from simtrain.studies.planning.layout import Combination

        values_of = {"cluster": self.clusters, "num_gpus": as_list(self.gpus)}
        combinations = (Combination(**change.values) for change in combinations_of(values_of))
        return [*dict.fromkeys(combinations)]
