"""Tutorials of NeuronX Distributed: bounds beside published times, for docs/related_work.md."""

import functools

from docs.update.published.neuron import SEQUENCES_PER_S
from docs.update.request import Request, seconds, table
from simtrain.iteration.report.result import Result
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from simtrain.units import GIB


@functools.cache
def bound_of(name: str, cluster: str = "trn1") -> Result:
    """Simulate a tutorial on a Trainium."""
    return simulate(load_scenario(name, (f"cluster={cluster}",)))


def published_s(name: str) -> float:
    """Return the published time of an iteration."""
    return load_scenario(name).batch.global_ / SEQUENCES_PER_S[name]


def neuron_tutorials(request: Request) -> str:
    """Return the table of the tutorials."""
    rows = []
    for name in SEQUENCES_PER_S:
        bound, published = bound_of(name), published_s(name)
        mesh = bound.scenario.parallelism
        layout = f"{mesh.tensor} x {mesh.pipeline} x {mesh.data}"
        rows.append(
            [
                f"`{name}`",
                layout,
                seconds(published),
                f"at least {seconds(bound.iteration_time_s)}",
                f"{published / bound.iteration_time_s:.2f}",
                f"{max(each.peak_bytes for each in bound.memory_report.stages) / GIB:.1f} GiB",
                f"at least {seconds(bound_of(name, 'trn2').iteration_time_s)}",
            ]
        )
    head = ["scenario", "tensor x pipeline x data", "published", "simulated, `trn1`"]
    return table([*head, "published / simulated", "peak, `trn1`", "simulated, `trn2`"], rows)
