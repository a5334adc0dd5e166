"""Checks of layers that a user wrote in Python."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from simtrain.errors import InputError
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Block, Microbatch, record


def check_own_layers(layers: Sequence[Block], num_layers: int, microbatch: Microbatch) -> None:
    """Check that layers can replace the `num_layers` layers of a model.

    Raises:
        InputError: not a list of blocks, another number of layers, or a layer whose output does not
            have the shape of its input (E505).
    """
    fix = "pass a list of objects with is_unit and forward(tape, x): simtrain show write_a_layer"
    if not isinstance(layers, Sequence) or isinstance(layers, str):
        raise InputError.of("E505", f"layers is a {type(layers).__name__}, not a list", fix=fix)
    for place, layer in enumerate(layers):
        if problem := _wrong_block(layer):
            raise InputError.of("E505", f"layers[{place}] is {problem}", fix=fix)
    number = sum(layer.is_unit for layer in layers)
    if number != num_layers:
        message = f"layers has {number} layers, but model.num_layers is {num_layers}"
        change = f", or set model.num_layers to {number}" if number else ""
        raise InputError.of("E505", message, fix=f"pass {num_layers} layers{change}")
    for layer in dict.fromkeys(layers):
        _check_output(layer, layers.index(layer), microbatch)


def _wrong_block(layer: Any) -> str:
    """Return what a layer is instead of a block; "" if it is a block."""
    missing = [name for name in ("is_unit", "forward") if not hasattr(layer, name)]
    kind = type(layer).__name__
    if isinstance(layer, type):
        return "a class, not an object"
    if missing:
        return f"a {kind} without {' and '.join(missing)}"
    # Equal layers share their recorded ops.
    return (
        ""
        if isinstance(layer, Hashable)
        else f"a {kind} without a hash; write @dataclass(frozen=True)"
    )


def _check_output(layer: Block, place: int, microbatch: Microbatch) -> None:
    """Check that a layer returns hidden states, which the next layer or stage receives."""
    recording = record(layer, microbatch)
    block_input, result = recording.block_input, recording.block_output
    if isinstance(result, Tensor):
        if (result.rows, result.width) == (block_input.rows, block_input.width):
            return
        returned = f"a tensor of {result.rows} x {result.width}"
    else:
        returned = "nothing" if result is None else f"an object of type {type(result).__name__}"
    message = f"forward of layers[{place}] returns {returned}"
    fix = f"return a tensor of {block_input.rows} x {block_input.width}, the shape of its input"
    raise InputError.of("E505", message, fix=fix)
