"""The GPU-seconds of an iteration, or the price of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.studies.objectives.objective import Objective

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.search.explorer import Candidate
    from simtrain.studies.search.result import SearchResult


class Cost(Objective):
    """GPU-seconds per iteration. All GPUs have the same price, so they rank as prices do."""

    name = "cost"
    text = "GPU-seconds per iteration, which on one number of GPUs rank layouts like time"
    field = "gpu_seconds"
    better = "cheaper"

    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return the GPU-seconds."""
        return scenario.num_gpus * time_s

    def words(self, value: float) -> str:
        """Write the GPU-seconds."""
        from simtrain.units import four_digits

        return f"{four_digits(value)} GPU-seconds"

    def column(self, layout: Candidate, result: SearchResult) -> dict[str, str]:
        """Price of a million tokens; GPU-seconds per iteration if the profile has no price."""
        from simtrain.units import four_digits

        price = result.price_of_tokens(layout)
        if result.price is None or price is None:
            return {"GPU-\nseconds": four_digits(layout.gpu_seconds)}
        return {f"{result.price.currency}/\nM tok.": four_digits(price)}
