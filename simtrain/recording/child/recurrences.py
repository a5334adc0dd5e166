"""Recurrent layers (`nn.LSTM`, `nn.GRU`, `nn.RNN`) by the products that cuDNN runs.

A layer multiplies the inputs of all steps at once, then the hidden state of each step by the
recurrent weights, followed by one kernel for the gates. The backward pass has a product per step
for the gradient of the hidden state, and one each for the inputs and both weights of all steps
(Appleyard et al. 2016, Sections 2 and 3). CPUs hide these products in one op. It saves the gates
and, of an LSTM, the states of cells.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simtrain.recording.child.op_log import OpLog
from simtrain.recording.child.problems import Unrecordable

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Products of each step, by torch's functions."""


def stand_ins(log: OpLog) -> dict[str, Any]:
    """Return what stands for torch's recurrent functions, by name."""
    return {name: functools.partial(_run, log, name) for name in _GATES}


def _run(
    log: OpLog,
    kind: str,
    x: Tensor,
    state: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Run all layers; arguments are those of torch's functions."""
    if not isinstance(weights, list):
        why = "the lengths of its sequences are values, which tensors of a recording lack"
        raise Unrecordable("a PackedSequence", why, "pad the sequences to one length")
    is_lstm = kind == "lstm"
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        x, weights = x.to(dtype), [each.to(dtype) for each in weights]
    hidden = state[0] if is_lstm else state
    has_projection = is_lstm and hidden.shape[-1] != state[1].shape[-1]
    number = 2 + 2 * has_biases + has_projection
    directions = 1 + bidirectional
    y = x.transpose(0, 1) if batch_first else x
    last: list[tuple[Tensor, ...]] = []
    with torch.autocast("cpu", enabled=False):
        for layer in range(num_layers):
            first = layer * directions * number
            of_layer = weights[first : first + directions * number]
            sizes = _GATES[kind], directions, has_biases, has_projection
            y, *states = _Layer.apply(log, sizes, is_lstm, y, *of_layer)
            last.append((*states,))
            if dropout and training and layer < num_layers - 1:
                y = F.dropout(y, dropout)
    finals = [torch.cat(parts) for parts in zip(*last, strict=True)]
    return (y.transpose(0, 1) if batch_first else y, *finals)


class _Layer(torch.autograd.Function):
    """A layer in one or both directions: [steps, batch, channels]."""

    @staticmethod
    def forward(
        ctx: Any,
        log: OpLog,
        sizes: tuple[int, int, bool, bool],
        is_lstm: bool,
        x: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        gates, directions, has_biases, has_projection = sizes
        steps, batch, _ = x.shape
        rows = x.reshape(steps * batch, -1)
        recurrent = weights[1]
        width, channels = recurrent.shape[0] // gates, recurrent.shape[1]
        y = x.new_empty(steps, batch, directions * channels)
        kept, of_step = [], x.new_empty(batch, gates * width)
        number = len(weights) // directions
        for first in range(0, len(weights), number):
            of_input, recurrent, *others = weights[first : first + number]
            if has_biases:
                inputs = torch.addmm(others[0], rows, of_input.t())
            else:
                inputs = torch.mm(rows, of_input.t())
            kept.append(inputs)
            hidden, cell = x.new_empty(batch, channels), x.new_empty(batch, width)
            with log.repeated(steps):
                torch.mm(hidden, recurrent.t(), out=of_step)
                torch.add(inputs[:batch], of_step, out=inputs[:batch])
                if has_projection:
                    torch.mm(cell, others[-1].t(), out=hidden)
            if is_lstm:
                kept.append(x.new_empty(steps, batch, width))  # states of cells
        ctx.log, ctx.sizes, ctx.num_kept = log, sizes, len(kept)
        ctx.save_for_backward(x, y, *kept, *weights)
        ctx.set_materialize_grads(False)
        last = [x.new_empty(directions, batch, each) for each in (channels, width)]
        return (y, *last[: 1 + is_lstm])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        gates, directions, has_biases, has_projection = ctx.sizes
        x, y, *others = ctx.saved_tensors
        kept, weights = others[: ctx.num_kept], others[ctx.num_kept :]
        steps, batch, _ = x.shape
        rows = x.reshape(steps * batch, -1)
        number, of_x = len(weights) // directions, None
        of_weights: list[Tensor | None] = []
        for direction in range(directions):
            first = direction * number
            of_input, recurrent, *more = weights[first : first + number]
            inputs = kept[direction * len(kept) // directions]
            of_inputs = torch.empty_like(inputs)
            channels = recurrent.shape[1]
            hidden = x.new_empty(batch, channels)
            cell = x.new_empty(batch, recurrent.shape[0] // gates)
            with ctx.log.repeated(steps):
                if has_projection:
                    torch.mm(hidden, more[-1], out=cell)
                torch.mul(inputs[:batch], of_inputs[:batch], out=of_inputs[:batch])
                torch.mm(of_inputs[:batch], recurrent, out=hidden)
            if of_x is None:
                of_x = torch.mm(of_inputs, of_input)
            else:
                of_x = torch.addmm(of_x, of_inputs, of_input)
            outputs = y.view(steps * batch, -1)[:, direction * channels :][:, :channels]
            of_weights += [torch.mm(of_inputs.t(), each) for each in (rows, outputs)]
            if has_biases:
                of_weights += [of_inputs.sum(0)] * 2
            if has_projection:
                cells = kept[direction * len(kept) // directions + 1].view(steps * batch, -1)
                of_weights.append(torch.mm(outputs.t(), cells))
        assert of_x is not None, "there is a direction"
        return None, None, None, of_x.view(x.shape), *of_weights
