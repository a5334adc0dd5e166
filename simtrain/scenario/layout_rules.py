"""Rules of custom pipeline layouts.

Source: `validate_layer_layout` in Megatron-Core's pipeline_parallel_layer_layout.py. E339 goes
beyond it for a single stage, where a layout has no effect, and so does E495.
"""

from __future__ import annotations

import re

from simtrain.scenario.rule import Rules, requires
from simtrain.scenario.schema import Scenario

LAYOUT_RULES = Rules()
rule = LAYOUT_RULES.rule
_LAYOUT = "parallelism.layout"
_ORDER = re.compile("Et+m*L")


@rule(
    "E339",
    "every stage has equally many chunks, pipeline x interleave in all; a single stage holds all "
    "layers",
    'parallelism: {pipeline: 4, layout: "Et*5|(t*6|)*6t*7L"}',
)
def _chunks_fill_stages(scenario: Scenario) -> str | None:
    split = scenario.parallelism
    chunks, stages = len(split.layout_chunks), split.pipeline
    if not chunks or (stages > 1 and chunks == stages * split.interleave):
        return None
    return (
        f"parallelism.layout has {chunks} chunk{'s' * (chunks > 1)}, but parallelism.pipeline x "
        f"interleave is {stages} x {split.interleave} = {stages * split.interleave}"
    )


@rule(
    "E359",
    "a model is one embedding (E), its layers (t), token prediction (m), one loss (L)",
    'parallelism: {pipeline: 2, layout: "t*24|t*24"}',
)
def _blocks_in_order(scenario: Scenario) -> str | None:
    layout = scenario.parallelism.layout
    if layout is None or _has_order(scenario):
        return None
    return f'the letters of parallelism.layout ("{layout}") are not in the order E, t, m, L'


def _has_order(scenario: Scenario) -> bool:
    return _ORDER.fullmatch("".join(scenario.parallelism.layout_chunks)) is not None


@rule(
    "E396",
    "a layout places every layer of the model",
    'parallelism: {pipeline: 2, layout: "Et*20|t*24L"}',
)
def _all_layers_are_placed(scenario: Scenario) -> str | None:
    text = "".join(scenario.parallelism.layout_chunks)
    wrong = [
        (letter, field, text.count(letter), getattr(scenario.model, field))
        for letter, field in (("t", "num_layers"), ("m", "mtp_num_layers"))
        if text.count(letter) != getattr(scenario.model, field)
    ]
    if not wrong or not _has_order(scenario):
        return None
    said = (f"{count} x {letter}, but model.{field} is {n}" for letter, field, count, n in wrong)
    return f"parallelism.layout has {', and '.join(said)}"


@rule(
    "E490",
    "all modules of token prediction (m) are in one chunk: the last chunk of a stage, but not of "
    "the first stage, whose chunks have another copy of the embedding",
    "model: {mtp_num_layers: 2, position_embedding: rope}\n"
    'parallelism: {pipeline: 4, layout: "Et*24|t*24|m|mL"}',
)
def _prediction_is_in_one_chunk(scenario: Scenario) -> str | None:
    split = scenario.parallelism
    chunks, stages = split.layout_chunks, split.pipeline
    places = [place for place, chunk in enumerate(chunks) if "m" in chunk]
    if not places or len(chunks) != stages * split.interleave or not _has_order(scenario):
        return None
    virtual_stages = scenario.stage_placement.virtual_stages[1:]
    allowed = sorted(last for *_, last in virtual_stages)
    if not allowed or (len(places) == 1 and places[0] in allowed):
        return None
    listed = " and ".join(str(place + 1) for place in places)
    return (
        f"parallelism.layout has m in chunk{'s' * (len(places) > 1)} {listed} of {len(chunks)}; m "
        f"may be in one of the chunks {allowed[0] + 1} to {allowed[-1] + 1}"
    )


@rule(
    "E495",
    "if token prediction (m) and the loss (L) are in different chunks, Megatron-Core exchanges the "
    "shape of each message first; simtrain simulates that for its interleaved schedule and without "
    "a gather on the receiver, or with blocking transfers",
    "model: {mtp_num_layers: 1, position_embedding: rope}\n"
    'parallelism: {tensor: 2, pipeline: 4, interleave: 2, layout: "Et*8|(t*8|)*5m|L"}\n'
    "overlap: {pipeline: true}",
)
def _shapes_are_exchanged(scenario: Scenario) -> str | None:
    split, chunks = scenario.parallelism, scenario.parallelism.layout_chunks
    if (
        not scenario.overlaps_pipeline
        or "m" not in "".join(chunks[:-1])
        or not _has_order(scenario)
    ):
        return None
    gathers = split.scatter_gather and split.tensor > 1
    if scenario.schedule_family.exchanges_shapes and not gathers:
        return None
    what = "parallelism.scatter_gather is true" if gathers else f"schedule is {scenario.schedule}"
    return (
        f"parallelism.layout has m and L in different chunks, but {what} and overlap.pipeline is "
        "true"
    )


LAYOUT_RULES += [
    requires(
        "E491",
        ("parallelism.first_stage_layers", "parallelism.last_stage_layers"),
        needs={_LAYOUT: None},
        why="a layout places every layer, also those of the first and last stage",
        example='parallelism: {pipeline: 2, first_stage_layers: 20, layout: "Et*20|t*28L"}',
    ),
]
