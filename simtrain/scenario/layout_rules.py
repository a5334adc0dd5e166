"""Rules of custom pipeline layouts.

Source: `validate_layer_layout` in Megatron-Core's pipeline_parallel_layer_layout.py. E490 goes
beyond it, and so does E339 for a single stage, where a layout has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from simtrain.scenario.nearest import near_divisors
from simtrain.scenario.pipeline_layout import layout_of_chunks
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


@_rule("E359", "a model is one embedding (E), its layers (t), token prediction (m), one loss (L)")
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


@_rule("E396", "a layout places every layer of the model")
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
    "simtrain simulates neither a chunk without any letter (its output is its input, which cannot "
    "be freed after the send) nor token prediction without the loss (it sends several hidden "
    "states to the next chunk)",
)
def _chunks_are_simulated(scenario: Scenario) -> Violation | None:
    chunks = scenario.parallelism.layout_chunks
    for number, chunk in enumerate(chunks, 1):
        if not chunk or ("m" in chunk and number < len(chunks)):
            what = "has m without L" if chunk else "is empty"
            message = f"chunk {number} of {len(chunks)} of parallelism.layout {what}"
            return Violation(message, {_LAYOUT: dict.fromkeys((_filled(chunks), None))})
    return None


def _filled(chunks: tuple[str, ...]) -> str | None:
    """Return a layout with each m beside L, and a layer of the fullest chunk in each empty one."""
    filled = [chunk.replace("m", "") for chunk in chunks]
    for place, chunk in enumerate(filled[:-1]):
        if not chunk:
            fullest = max(range(len(filled)), key=lambda one: (filled[one].count("t"), one))
            filled[fullest] = filled[fullest].replace("t", "", 1)
            filled[place] = "t"
    if not all(filled):
        return None
    filled[-1] = filled[-1].replace("L", "m" * "".join(chunks).count("m") + "L")
    return layout_of_chunks(filled)


@_rule("E491", "a layout places every layer, also those of the first and last stage")
def _layout_is_alone(scenario: Scenario) -> Violation | None:
    split = scenario.parallelism
    names = ("first_stage_layers", "last_stage_layers")
    own = [f"parallelism.{name}" for name in names if getattr(split, name) is not None]
    if split.layout is None or not own:
        return None
    return Violation(
        f"parallelism.layout is set together with {' and '.join(own)}",
        {field: [None] for field in own} | {_LAYOUT: [None]},
        (*own, _LAYOUT),
    )
