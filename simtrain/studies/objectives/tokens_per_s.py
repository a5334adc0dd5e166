"""The tokens of the global batch per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simtrain.studies.objectives.objective import Objective

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.search.explorer import Candidate
    from simtrain.studies.search.result import SearchResult


class TokensPerSecond(Objective):
    """Tokens per second. The batch and so the tokens are fixed: they rank like time."""

    name = "tokens_per_s"
    text = "tokens per second"
    field = "tokens_per_s"
    better = "faster"
    is_maximised = True

    def value(self, scenario: Scenario, time_s: float, peak_bytes: int) -> float:
        """Return minus the tokens per second."""
        tokens = scenario.batch.global_ * scenario.model.seq_length
        return -tokens / time_s if time_s else float("-inf")

    def words(self, value: float) -> str:
        """Write the tokens per second."""
        return f"{-value:,.0f} tokens/s"

    def column(self, layout: Candidate, result: SearchResult) -> dict[str, str]:
        """Return the tokens per second."""
        return {"tokens/s": f"{layout.run.tokens_per_s:,.0f}"}
