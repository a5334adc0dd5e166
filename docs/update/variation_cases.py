"""Steps of published runs beside drawn ones, for docs/how_to/vary_an_iteration.md."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import simtrain
from docs.update.request import Request, table
from simtrain.scenario import Scenario
from simtrain.studies.variation import DrawnTimes, draw

_DRAWS = 1000


@dataclass(frozen=True)
class Case:
    """Steps of Llama 3.1 405B on GB200s.

    The layout is not printed: microbatches and context-parallel ranks are those with which the
    median step is near the published one, on tensor 4 and pipeline 8.

    Args:
        system: who ran it.
        num_gpus: GPUs.
        median_s: published median step.
        ratio: published 99th percentile over the median, by run.
        deviation: published coefficient of variation in percent, by run.
        num_microbatches, context: the layout.
    """

    system: str
    num_gpus: int
    median_s: float
    ratio: str
    deviation: str
    num_microbatches: int
    context: int = 1

    @property
    def scenario(self) -> Scenario:
        """The scenario, with the entries of the profile that stands in."""
        replicas = self.num_gpus // (32 * self.context)
        return simtrain.load_scenario("llama3_405b").replace(
            {
                "parallelism.tensor": 4,
                "parallelism.context": self.context,
                "parallelism.pipeline": 8,
                "parallelism.first_stage_layers": 15,
                "parallelism.last_stage_layers": 15,
                "parallelism.data": replicas,
                "batch.global": replicas * self.num_microbatches,
                "cluster": "gb200",
                "hardware.cluster.num_nodes": 1280,
                "precision.compute": "fp8",
                "recompute": "none",
            }
        )

    @functools.cached_property
    def drawn(self) -> DrawnTimes:
        """The step, drawn many times."""
        return draw(self.scenario, draws=_DRAWS)


_V50, _V51 = "MLPerf v5.0, CoreWeave", "MLPerf v5.1, NVIDIA"
FITTED_ON = Case(_V51, 2560, 3.19, "1.063", "1.76", 12, 2)
"""The rate and the duration of pauses are fitted on these steps."""


def cases() -> Iterator[Case]:
    """Yield published steps on which nothing was fitted."""
    yield Case(_V50, 512, 19.3, "1.007, 1.007, 1.008", "0.55, 1.21, 0.52", 56)
    yield Case(_V50, 1024, 8.45, "1.008, 1.008, 1.008", "0.86, 0.82, 0.81", 20)
    yield Case(_V50, 1536, 8.49, "1.014, 1.013, 1.641", "1.07, 0.99, 11.2", 20)
    yield Case(_V50, 2048, 7.15, "1.039, 1.030, 1.029", "0.95, 0.68, 0.90", 56, 4)
    yield Case(_V50, 2496, 5.82, "1.047, 1.062, 1.058", "1.11, 1.57, 1.24", 28, 2)
    yield Case(_V51, 5120, 2.23, "1.064", "1.99", 12, 4)


def variation_cases(request: Request) -> str:
    """Return the table of published steps."""
    rows = []
    for case in (FITTED_ON, *cases()):
        time, is_fit = case.drawn.time, case is FITTED_ON
        system = f"{case.system}{' (fitted)' * is_fit}"
        numbers = f"{case.median_s:g} s", f"{time.p50:.3g} s", case.ratio
        tail, deviation = f"{time.p99 / time.p50:.3f}", f"{100 * time.deviation / time.mean:.2f}"
        rows.append([system, f"{case.num_gpus:,}", *numbers, tail, case.deviation, deviation])
    head = ["system", "GPUs", "median step", "drawn", "99th percentile / median", "drawn"]
    head += ["deviation, %", "drawn"]
    return table(head, rows)
