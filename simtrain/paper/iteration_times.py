"""Table 5, and the 530B model with 8-way data parallelism (Section 6.3)."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.paper.comparison import Comparison, Gain, Progress, Row
from simtrain.paper.models import MODELS
from simtrain.report.result import Result
from simtrain.scenario import load_scenario
from simtrain.simulation import simulate


@dataclass(frozen=True, slots=True)
class Published:
    """A row of Table 5: seconds, and utilization of the present work."""

    full_s: float
    present_s: float
    gain: float
    mfu: float
    hfu: float


TABLE5 = {
    "22B": Published(1.42, 1.10, 0.290, 0.415, 0.422),
    "175B": Published(18.13, 13.75, 0.318, 0.514, 0.518),
    "530B": Published(49.05, 37.83, 0.297, 0.560, 0.564),
    "1T": Published(94.42, 71.49, 0.321, 0.563, 0.565),
}
DATA_PARALLEL_530B_S = 39.15
"""Section 6.3: 8-way data parallelism, gradient all-reduces not overlapped."""

TABLE5_MEAN, TABLE5_MAX, GAIN_POINTS = 0.015, 0.03, 0.015
DATA_PARALLEL_MAX = 0.02


def table5(progress: Progress | None = None) -> Comparison:
    """Simulate the eight runs of Table 5."""
    rows: list[Row] = []
    gains: list[Gain] = []
    for number, model in enumerate(MODELS):
        full = _run(f"table5_{model.lower()}_full", 2 * number, 8, progress)
        present = _run(f"table5_{model.lower()}_present", 2 * number + 1, 8, progress)
        paper = TABLE5[model]
        rows.append(Row(model, "full", paper.full_s, full.iteration_time_s, _utilization(full)))
        rows.append(
            Row(
                model,
                "selective+sequence",
                paper.present_s,
                present.iteration_time_s,
                _utilization(present) | {"paper_mfu": paper.mfu, "paper_hfu": paper.hfu},
            )
        )
        gain = full.iteration_time_s / present.iteration_time_s - 1
        gains.append(Gain(model, paper.gain, gain, GAIN_POINTS))
    title = "Table 5: end-to-end iteration time"
    return Comparison(title, rows, TABLE5_MEAN, TABLE5_MAX, gains)


def dp530b(progress: Progress | None = None) -> Comparison:
    """Simulate the 530B model on 2240 GPUs, and beside it with the all-reduce overlapped."""
    exposed = _run("dp530b", 0, 2, progress)
    hidden = _run("dp530b", 1, 2, progress, "overlap.data_parallel=true")
    facts = _utilization(exposed) | {"paper_mfu": 0.542, "overlapped_s": hidden.iteration_time_s}
    row = Row("530B", "selective+sequence", DATA_PARALLEL_530B_S, exposed.iteration_time_s, facts)
    title = "530B with 8-way data parallelism (Section 6.3)"
    return Comparison(title, [row], DATA_PARALLEL_MAX, DATA_PARALLEL_MAX)


def _run(
    scenario: str, done: int, total: int, progress: Progress | None, *overrides: str
) -> Result:
    if progress:
        progress(scenario, done, total)
    return simulate(load_scenario(scenario, overrides))


def _utilization(result: Result) -> dict[str, float]:
    return {"mfu": result.mfu, "hfu": result.hfu}
