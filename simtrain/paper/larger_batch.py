"""What freed memory buys: larger microbatches, or fewer pipeline stages and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simtrain.paper.entries import Progress, reported
from simtrain.paper.models import MODELS, STRATEGIES, paper_scenario
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate, simulate_memory

MICROBATCHES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
PIPELINES = {"22B": (1, 2), "175B": (4, 8, 16, 32), "530B": (21, 35, 105), "1T": (32, 64, 128)}
"""Pipeline sizes that divide the layers of a model, around that of Table 3."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A model of Table 3 under a strategy, with another microbatch or another pipeline.

    Bytes are those of the fullest stage. Time, rate and MFU are None if the variant does not fit.
    """

    strategy: str
    microbatch: int
    pipeline: int
    num_gpus: int
    states_bytes: int
    peak_bytes: int
    iteration_time_s: float | None = None
    sequences_per_s: float | None = None
    mfu: float | None = None


@dataclass(frozen=True, slots=True)
class FreedMemory:
    """What the memory of one model buys, on GPUs of `capacity_bytes`.

    Other microbatches keep Table 3's number of microbatches, other pipelines keep its batch.
    """

    capacity_bytes: int
    microbatches: tuple[Variant, ...]
    pipelines: tuple[Variant, ...]


def freed_memory(
    models: Sequence[str] = MODELS,
    sizes: Sequence[int] = MICROBATCHES,
    on_progress: Progress | None = None,
) -> dict[str, FreedMemory]:
    """Compute the memory of each variant, and simulate the variants that fit."""
    freed = {}
    for model in reported(models, on_progress, lambda name: f"batches of {name}"):
        capacity = simulate_memory(paper_scenario(model, "full")).capacity_bytes
        batches: list[Variant] = []
        pipelines: list[Variant] = []
        for strategy in STRATEGIES:
            batches += [_variant(strategy, size) for size in _microbatches(model, strategy, sizes)]
            pipelines += [_variant(strategy, stages) for stages in _pipelines(model, strategy)]
        freed[model] = FreedMemory(capacity, tuple(batches), tuple(pipelines))
    return freed


def _microbatches(model: str, strategy: str, sizes: Sequence[int]) -> Iterator[Scenario]:
    table3 = paper_scenario(model, strategy).batch
    number = table3.global_ // table3.micro
    for size in sizes:
        yield paper_scenario(
            model, strategy, f"batch.micro={size}", f"batch.global={number * size}"
        )


def _pipelines(model: str, strategy: str) -> Iterator[Scenario]:
    """Yield other pipeline sizes, interleaved as in Table 3 if Megatron-LM allows it."""
    table3 = paper_scenario(model, strategy)
    layers, interleave = table3.model.num_layers, table3.parallelism.interleave
    number = table3.batch.global_ // table3.batch.micro
    for stages in PIPELINES[model]:
        divides = layers % (stages * interleave) == 0 and number % stages == 0
        yield paper_scenario(
            model,
            strategy,
            f"parallelism.pipeline={stages}",
            f"parallelism.interleave={interleave if divides else 1}",
        )


def _variant(strategy: str, scenario: Scenario) -> Variant:
    memory, split = simulate_memory(scenario), scenario.parallelism
    fullest = memory.fullest
    variant = (
        strategy,
        scenario.batch.micro,
        split.pipeline,
        scenario.num_gpus,
        fullest.states.total_bytes,
        fullest.peak_bytes,
    )
    if not memory.fits:
        return Variant(*variant)
    result = simulate(scenario)
    time_s = result.iteration_time_s
    return Variant(*variant, time_s, scenario.batch.global_ / time_s, result.mfu)
