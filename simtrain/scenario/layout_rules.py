"""Rules of custom pipeline layouts.

Source: `validate_layer_layout` in Megatron-Core's pipeline_parallel_layer_layout.py. E339 goes
beyond it for a single stage, where a layout has no effect, and so does E495.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.pipeline_layout import layout_of_chunks
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering

LAYOUT_RULES: list[Rule] = []
_rule = registering(LAYOUT_RULES)
_LAYOUT = "parallelism.layout"
_ORDER = re.compile("Et+m*L")


@_rule(
    "E339",
    "every stage has equally many chunks, pipeline x interleave in all; a single stage holds all "
    "layers",
    what=("The chunks of a pipeline layout do not fill the stages, or there is a single stage."),
    fix=(
        "Set parallelism.interleave to the number of chunks (separated by |) divided by "
        "parallelism.pipeline, or remove parallelism.layout."
    ),
    example='parallelism: {pipeline: 4, layout: "Et*5|(t*6|)*6t*7L"}',
)
def _chunks_fill_stages(scenario: Scenario) -> Violation | None:
    split = scenario.parallelism
    chunks, stages = len(split.layout_chunks), split.pipeline
    if not chunks or (stages > 1 and chunks == stages * split.interleave):
        return None
    values: dict[str, Iterable[object]] = {
        "parallelism.pipeline": near_divisors(stages, max(1, chunks // split.interleave), 2),
        _LAYOUT: [None],
    }
    if stages > 1 and chunks % stages == 0:
        values = {"parallelism.interleave": [chunks // stages], **values}
    return Violation(
        f"parallelism.layout has {chunks} chunk{'s' * (chunks > 1)}, but parallelism.pipeline x "
        f"interleave is {stages} x {split.interleave} = {stages * split.interleave}",
        values,
        (_LAYOUT,),
    )


@_rule(
    "E359",
    "a model is one embedding (E), its layers (t), token prediction (m), one loss (L)",
    what="The letters of a pipeline layout are not those of a model, in its order.",
    fix=(
        "Begin the layout with the only E (embedding), end it with the only L (output layer"
        " and loss), and write t (layers) before m (multi-token prediction)."
    ),
    example='parallelism: {pipeline: 2, layout: "t*24|t*24"}',
)
def _blocks_in_order(scenario: Scenario) -> Violation | None:
    layout = scenario.parallelism.layout
    if layout is None or _has_order(scenario):
        return None
    return Violation(
        f'the letters of parallelism.layout ("{layout}") are not in the order E, t, m, L',
        {_LAYOUT: [f"E{layout}", f"{layout}L", f"E{layout}L", None]},
    )


def _has_order(scenario: Scenario) -> bool:
    return _ORDER.fullmatch("".join(scenario.parallelism.layout_chunks)) is not None


@_rule(
    "E396",
    "a layout places every layer of the model",
    what="A pipeline layout has more or fewer layers than the model.",
    fix=("Write one t for each of model.num_layers and one m for each of model.mtp_num_layers."),
    example='parallelism: {pipeline: 2, layout: "Et*20|t*24L"}',
)
def _all_layers_are_placed(scenario: Scenario) -> Violation | None:
    text = "".join(scenario.parallelism.layout_chunks)
    wrong = [
        (letter, field, text.count(letter), getattr(scenario.model, field))
        for letter, field in (("t", "num_layers"), ("m", "mtp_num_layers"))
        if text.count(letter) != getattr(scenario.model, field)
    ]
    if not wrong or not _has_order(scenario):
        return None
    said = (f"{count} x {letter}, but model.{field} is {n}" for letter, field, count, n in wrong)
    return Violation(
        f"parallelism.layout has {', and '.join(said)}",
        {f"model.{field}": [count] for _, field, count, _ in wrong} | {_LAYOUT: [None]},
        (_LAYOUT,),
    )


@_rule(
    "E490",
    "all modules of token prediction (m) are in one chunk: the last chunk of a stage, but not of "
    "the first stage, whose chunks have another copy of the embedding",
    what=(
        "A pipeline layout has token prediction in a chunk where Megatron-Core does not allow it."
    ),
    fix="Move every m into one chunk: the last chunk of any stage except the first.",
    example=(
        "model: {mtp_num_layers: 2, position_embedding: rope}\n"
        'parallelism: {pipeline: 4, layout: "Et*24|t*24|m|mL"}'
    ),
)
def _prediction_is_in_one_chunk(scenario: Scenario) -> Violation | None:
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
    return Violation(
        f"parallelism.layout has m in chunk{'s' * (len(places) > 1)} {listed} of {len(chunks)}; m "
        f"may be in one of the chunks {allowed[0] + 1} to {allowed[-1] + 1}",
        {_LAYOUT: [_beside_loss(chunks), None]},
    )


def _beside_loss(chunks: tuple[str, ...]) -> str:
    """Return the layout with token prediction in the chunk of the loss."""
    number = "".join(chunks).count("m")
    *others, last = (chunk.replace("m", "") for chunk in chunks)
    return layout_of_chunks([*others, last.replace("L", "m" * number + "L")])


@_rule(
    "E495",
    "if token prediction (m) and the loss (L) are in different chunks, Megatron-Core exchanges the "
    "shape of each message first; simtrain simulates that for its interleaved schedule and without "
    "a gather on the receiver, or with blocking transfers",
    what=(
        "Token prediction is apart from the loss, while transfers overlap in a way that "
        "simtrain does not simulate."
    ),
    fix=(
        "Set parallelism.scatter_gather to false, use the interleaved schedule, set "
        "overlap.pipeline to false, or move m into the chunk of L."
    ),
    example=(
        "model: {mtp_num_layers: 1, position_embedding: rope}\n"
        'parallelism: {tensor: 2, pipeline: 4, interleave: 2, layout: "Et*8|(t*8|)*5m|L"}\n'
        "overlap: {pipeline: true}"
    ),
)
def _shapes_are_exchanged(scenario: Scenario) -> Violation | None:
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
    values: dict[str, Iterable[object]] = {"overlap.pipeline": [False]}
    if gathers:
        values["parallelism.scatter_gather"] = [False]
    return Violation(
        f"{what} and overlap.pipeline is true, but parallelism.layout has m and L in different "
        "chunks",
        {**values, _LAYOUT: [_beside_loss(chunks)]},
        (_LAYOUT,),
    )


LAYOUT_RULES += [
    Requires(
        "E491",
        ("parallelism.first_stage_layers", "parallelism.last_stage_layers"),
        needs={_LAYOUT: None},
        why="a layout places every layer, also those of the first and last stage",
        example='parallelism: {pipeline: 2, first_stage_layers: 20, layout: "Et*20|t*28L"}',
    ),
]
