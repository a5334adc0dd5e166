"""LoRA: low-rank adapters of frozen linear layers (Hu et al. 2021, "LoRA").

An adapter multiplies the layer's input by A (inputs × rank) and B (rank × outputs), scales the
result, and adds it to the layer's output. Source: Megatron-Bridge, peft/utils.py
(`ParallelLinearAdapter`), peft/lora_layers.py (`LoRALinear`) and peft/canonical_lora.py.

- Adapters multiply in the compute type, even if linear layers multiply in fp8. Then the norm before
  an adapted layer writes the compute type (`return_layernorm_output`), and its output is cast.
- Of a column-parallel layer, A and B are split by columns. The columns of x A are gathered.
- Of a row-parallel layer, A is split by rows and B by columns. x A is all-reduced, and the columns
  of x A B are gathered; under sequence parallelism each rank keeps its tokens.
- Under sequence parallelism, a column-parallel layer and its adapters read the same gathered input
  (`return_layernorm_output_gathered`), and the sum of their input gradients is reduce-scattered.
  The adapters save the gathered input.
- Scaling, sum and dropout (before A) are kernels of their own.

Canonical LoRA has separate adapters for parts of a fused weight, such as queries and values. Their
outputs are joined before the sum.

A stack with separate projections has an adapter for each of them (torchtitan's components/lora.py,
`_adapter_sharding`; torchtune's modules/peft/lora.py, `LoRALinear`). Under tensor parallelism:
- Of a column-parallel layer, A is replicated and B split by columns. A reads the input that the
  projections share, which is gathered in the compute type. Nothing else is communicated.
- Of a row-parallel layer, A is split by rows and B replicated. x A B is a partial sum as the
  layer's output is, and both are summed before the ranks reduce them.
- Each rank has a partial sum of the gradient of the replicated matrix (`Parameter.is_whole`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simtrain.base.values import replace
from simtrain.scenario.model import Lora
from simtrain.workload.blocks.elementwise import dropout
from simtrain.workload.blocks.linear import (
    all_gather,
    all_reduce,
    column_linear,
    gather_columns,
    reduce_scatter,
    replicated_linear,
    row_linear,
    without_ranks,
)
from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Microbatch, Tape

_NARROW: dict[str, Any] = {"bias": False, "in_fp8": False, "has_userbuffers": False}
"""Options of the column-parallel products of adapters."""


def adapted_column(
    tape: Tape,
    x: Tensor,
    parts: Mapping[str, int],
    name: str,
    label: str,
    lora: Lora,
    module: str,
    **options: Any,
) -> Tensor:
    """Record a column-parallel linear layer with at least one adapter.

    `parts` are the columns of each part of the weight, by the name of its module in canonical LoRA;
    `module` is that of the whole layer. Other arguments are those of `column_linear`.
    """
    batch, outputs = tape.microbatch, sum(parts.values())
    candidates = {module: outputs} if module in lora.modules else parts
    adapted = {part: number for part, number in candidates.items() if part in lora.modules}
    input_of = batch
    if batch.sequence_parallel:
        x, input_of = all_gather(tape, x, batch.tensor, f"{label} g"), without_ranks(batch)
    y = column_linear(tape, x, outputs, name, label, input_of=input_of, **options)
    low_rank = [
        _column_adapter(
            tape, x, columns, f"{name if part == module else part} adapter", lora, input_of
        )
        for part, columns in adapted.items()
    ]
    return _add(tape, y, _joined(tape, low_rank, y, name), name)


def _column_adapter(
    tape: Tape, x: Tensor, outputs: int, title: str, lora: Lora, input_of: Microbatch
) -> Tensor:
    """Record an adapter of a column-parallel layer, or of a part of it."""
    with tape.training():
        x = _dropped(tape, x, title, lora)
        z = column_linear(tape, x, lora.rank, f"{title} in", input_of=input_of, **_NARROW)
        z = gather_columns(tape, z, f"{title} in gather", all_tokens=True)
        return _product_out(tape, z, outputs, title)


def add_adapter(tape: Tape, x: Tensor, y: Tensor, name: str, lora: Lora) -> Tensor:
    """Add the adapter of one of several separate column-parallel layers to its output `y`.

    All ranks have all rows of the input `x`.
    """
    batch, title = tape.microbatch, f"{name} adapter"
    with tape.training():
        z = _dropped(tape, x, title, lora)
        z = replicated_linear(tape, z, lora.rank, f"{title} in", in_fp8=False)
        outputs, alone = y.width * batch.tensor.num_ranks, without_ranks(batch)
        z = column_linear(tape, z, outputs, f"{title} out", input_of=alone, **_NARROW)
        z = _scaled(tape, z, title)
    return _add(tape, y, z, name)


def adapted_row(tape: Tape, x: Tensor, name: str, label: str, lora: Lora, *, bias: bool) -> Tensor:
    """Record a row-parallel linear layer with its adapter; arguments as of `row_linear`."""
    batch, title = tape.microbatch, f"{name} adapter"
    low: dict[str, Any] = {"bias": False, "outputs": lora.rank, "in_fp8": False}
    if batch.kernels.separate_projections:
        alone = without_ranks(batch)
        y = row_linear(tape, x, name, label, bias=bias, output_of=alone)
        with tape.training():
            x = _dropped(tape, x, title, lora)
            z = row_linear(tape, x, f"{title} in", output_of=alone, **low)
            z = replicated_linear(tape, z, y.width, f"{title} out", in_fp8=False)
            z = _scaled(tape, z, title)
        y = _add(tape, y, z, name)
        if batch.tensor.num_ranks == 1:
            return y
        if batch.sequence_parallel:
            return reduce_scatter(tape, y, batch.tensor, f"{label} ḡ")
        return all_reduce(tape, y, batch.tensor, f"{label} f̄")
    y = row_linear(tape, x, name, label, bias=bias)
    with tape.training():
        x, part = _dropped(tape, x, title, lora), replace(batch, sequence_parallel=False)
        z = row_linear(tape, x, f"{title} in", output_of=part, **low)
        z = _product_out(tape, z, y.width, title, gathers=True)
    return _add(tape, y, z, name)


def _dropped(tape: Tape, x: Tensor, title: str, lora: Lora) -> Tensor:
    return dropout(tape, x, f"{title} dropout") if lora.dropout else x


def _product_out(
    tape: Tape, x: Tensor, outputs: int, title: str, *, gathers: bool = False
) -> Tensor:
    """Record the product with B, whose input all ranks have; return its output, scaled."""
    input_of = replace(tape.microbatch, sequence_parallel=False)
    y = column_linear(tape, x, outputs, f"{title} out", input_of=input_of, **_NARROW)
    if gathers:
        y = gather_columns(tape, y, f"{title} out gather")
    return _scaled(tape, y, title)


def _scaled(tape: Tape, y: Tensor, title: str) -> Tensor:
    scaled, size, phase = tape.tensor(f"{title} output", y.rows, y.width), y.num_bytes, Phase
    forward = elementwise(f"{title} scale", size, size)
    backward = elementwise(f"{title} scale gradient", size, size, phase.INPUT_GRADIENT)
    return tape.record(f"{title} scale", (y,), scaled, (forward,), (backward,))


def _joined(tape: Tape, parts: list[Tensor], whole: Tensor, name: str) -> Tensor:
    """Record the copy of the outputs of several adapters into one array as wide as the layer's."""
    if len(parts) == 1 and parts[0].width == whole.width:
        return parts[0]
    y = tape.tensor(f"{name} adapters output", whole.rows, whole.width)
    read_bytes, title = sum(part.num_bytes for part in parts), f"{name} adapters join"
    forward = elementwise(title, read_bytes, y.num_bytes)
    return tape.record(title, tuple(parts), y, (forward,))


def _add(tape: Tape, x: Tensor, low_rank: Tensor, name: str) -> Tensor:
    """Record the sum of the layer's and the adapters' outputs, which has no backward kernel."""
    y = tape.tensor(f"{name} sum", x.rows, x.width)
    forward = elementwise(f"{name} and adapter sum", 2 * x.num_bytes, y.num_bytes)
    return tape.record(f"{name} and adapter sum", (x, low_rank), y, (forward,))
