"""Lengths of the first and last pipeline stage that a search tries, or a layout of all chunks.

If the number of stages does not divide the layers, Megatron-LM needs a length for the first and the
last stage (`--decoder-first-pipeline-num-layers`, `--decoder-last-pipeline-num-layers`); the layers
between them are shared evenly. Most lengths are far from balance, so a search tries a few. If none
is close to it, a layout (`--pipeline-model-parallel-layout`) gives each chunk its own number of
layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simtrain.iteration.plan import microbatch_of, overlap_of
from simtrain.scenario import Parallelism, Scenario
from simtrain.scenario.pipeline_layout import layout_of_chunks
from simtrain.schedules import StagePlacement
from simtrain.workload.chunk import Chunk, chunk_of
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.model_chunks import cut_into_chunks
from simtrain.workload.ops import total_flops
from simtrain.workload.passes import Pass, PassOptions
from simtrain.workload.recompute import SAVE_ALL
from simtrain.workload.record import record_pass

_MOST = 2
"""Pairs of lengths per number of stages and chunks."""


class StageLengths(NamedTuple):
    """Layers of the first and of the last stage; None for an even share."""

    first_stage_layers: int | None
    last_stage_layers: int | None


EVEN = StageLengths(None, None)


def lengths_to_try(
    num_layers: int, placement: StagePlacement, model_end: float
) -> list[StageLengths]:
    """List the lengths of the first and last stage that a search tries on several stages.

    Even lengths if all stages can have equally many layers, otherwise a few lengths that are
    closest to balance. With a layer per chunk or a quarter more than an even share, a stage is too
    far from it.

    Args:
        num_layers: layers of the model.
        placement: at least 2 stages of the pipeline, and their chunks.
        model_end: work of the loss and of token prediction, in layers.
    """
    num_stages, num_chunks = placement.num_ranks, placement.interleave
    if num_layers % num_stages == 0:
        return [EVEN]
    share = num_layers / num_stages
    most = share + max(num_chunks, share / 4)
    loads: dict[StageLengths, tuple[float, float]] = {}
    for first, middle, last in _cuts(num_layers, num_stages, num_chunks):
        if max(first, middle, last) > most:
            continue
        stages: list[float] = [first, *[middle] * (num_stages - 2), last]
        stages[placement.ranks[-1]] += model_end
        # The sum of squares orders cuts with equal fullest stages.
        loads[StageLengths(first, last)] = max(stages), sum(layers**2 for layers in stages)
    fullest = min((full for full, _ in loads.values()), default=0.0)
    close = [pair for pair, (full, _) in loads.items() if full <= fullest + num_chunks]
    return sorted(close, key=lambda pair: (loads[pair][1], pair))[:_MOST]


def _cuts(num_layers: int, num_stages: int, num_chunks: int) -> Iterator[tuple[int, int, int]]:
    """Yield layers of the first, a middle and the last stage, all in whole chunks."""
    if num_layers % num_chunks:
        return
    share = num_layers // num_stages // num_chunks * num_chunks
    for middle in range(max(num_chunks, share - num_chunks), share + 3 * num_chunks, num_chunks):
        rest = num_layers - (num_stages - 2) * middle
        for first in range(num_chunks, rest, num_chunks):
            yield first, middle, rest - first


def balanced_layout(
    num_layers: int, placement: StagePlacement, model_end: float, num_predictions: int
) -> str | None:
    """Return the layout with the most even stages, in which each chunk before the last has layers.

    None if there are too few layers, or several copies of the model. Chunks of a stage are as even
    as possible.

    Args:
        num_layers: layers of the model.
        placement: at least 2 stages of the pipeline, and their chunks.
        model_end: work of the loss and of token prediction, in layers.
        num_predictions: modules of token prediction.
    """
    num_others, num_chunks = placement.num_ranks - 1, placement.num_chunks

    def fullest(of_last: int) -> tuple[float, int]:
        return max(-(-(num_layers - of_last) // num_others), of_last + model_end), -of_last

    of_last = min(range(num_layers // placement.num_ranks + 1), key=fullest)
    share, num_longer = divmod(num_layers - of_last, num_others)
    if placement.copies > 1 or share < num_chunks or of_last < num_chunks - 1:
        return None
    last = placement.ranks[-1]
    layers = [share + (place >= num_others - num_longer) for place in range(num_others)]
    layers.insert(last, of_last)
    chunks = [""] * placement.num_virtual_stages
    for virtual_stages, of_stage in zip(placement.virtual_stages, layers, strict=True):
        of_chunk, num_longer = divmod(of_stage, num_chunks)
        for place, virtual_stage in enumerate(virtual_stages):
            chunks[virtual_stage] = "t" * (of_chunk + (place < num_longer))
    return layout_of_chunks(
        ["E" + chunks[0], *chunks[1:-1], chunks[-1] + "m" * num_predictions + "L"]
    )


def explicit_lengths(
    lengths: StageLengths, num_layers: int, num_stages: int
) -> StageLengths | None:
    """Return the lengths with the even share in place of None; None if it is no whole number."""
    ends = [length for length in lengths if length is not None]
    rest, num_others = num_layers - sum(ends), num_stages - len(ends)
    if num_others == 0:
        return None if rest else lengths
    share, left = divmod(rest, num_others)
    if left or share < 1:
        return None
    first, last = (share if length is None else length for length in lengths)
    return EVEN if first == last == share else StageLengths(first, last)


def layers_of_model_end(scenario: Scenario) -> float:
    """Work of the loss and of token prediction, as a number of average layers (by FLOPs)."""
    alone = scenario.model_copy(
        update={
            "parallelism": Parallelism(),
            "batch": scenario.batch.model_copy(update={"micro": 1}),
        }
    )
    options = PassOptions(microbatch_of(alone, alone.parallelism.mesh()), overlap_of(alone))

    def flops(chunk: Chunk) -> int:
        return total_flops(record_pass(Pass(chunk, "F", SAVE_ALL, options)).ops)

    model = gpt_blocks(alone)
    (whole,) = cut_into_chunks(model, alone.chunk_contents).different
    in_layers = flops(chunk_of(block for block in model.blocks if block.is_unit))
    return alone.model.num_layers * (flops(whole) / in_layers - 1)
