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
  The adapters save the gathered input. With userbuffers they gather it themselves, and nothing
  hides the layer's gather (Transformer Engine's LayerNormLinear with `return_layernorm_output`).
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

The experts of a rank share one adapter for each of their products, which multiplies all rows of
the rank at once (`ParallelLinearAdapter` of a grouped layer). It is equal on all ranks of the
experts, which sum its gradients once more after those of the replicas
(`allreduce_expert_parallel_replicated_grads`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
from simtrain.workload.tape import Tape

_NARROW: dict[str, Any] = {"bias": False, "in_fp8": False, "has_userbuffers": False}
"""Options of the column-parallel products of adapters."""
Product = Callable[[Tensor, int, str], Tensor]
"""Records the product of a tensor and a matrix, from the matrix's columns and a name."""


def adapted_column(
    tape: Tape,
    x: Tensor,
    parts: Mapping[str, int],
    name: str,
    label: str,
    lora: Lora | None,
    module: str,
    **options: Any,
) -> Tensor:
    """Record a column-parallel linear layer with its adapters, if it has any.

    `parts` are the columns of each part of the weight, by the name of its module in canonical LoRA;
    `module` is that of the whole layer. Other arguments are those of `column_linear`.
    """
    batch, outputs = tape.microbatch, sum(parts.values())
    if lora is None or not lora.adapts(module):
        return column_linear(tape, x, outputs, name, label, **options)
    whole, part = x, replace(batch, sequence_parallel=False)
    input_of = without_ranks(batch) if batch.sequence_parallel else batch
    if batch.sequence_parallel:
        title = f"{name} adapter g" if batch.userbuffers else f"{label} g"
        whole = all_gather(tape, x, batch.tensor, title)
    of_layer = (x, batch) if batch.userbuffers else (whole, input_of)
    options |= {"input_of": of_layer[1], "has_userbuffers": False}
    y = column_linear(tape, of_layer[0], outputs, name, label, **options)

    def first(x: Tensor, rank: int, title: str) -> Tensor:
        z = column_linear(tape, x, rank, title, input_of=input_of, **_NARROW)
        return gather_columns(tape, z, f"{title} gather", all_tokens=True)

    second = partial(column_linear, tape, input_of=part, **_NARROW)
    return add_adapters(tape, whole, y, parts, name, lora, module, first, second)


def add_adapters(
    tape: Tape,
    x: Tensor,
    y: Tensor,
    parts: Mapping[str, int],
    name: str,
    lora: Lora,
    module: str,
    first: Product,
    second: Product,
) -> Tensor:
    """Add the adapters of a layer, or of parts of it, to its output `y`; as in `adapted_column`."""
    candidates = {module: sum(parts.values())} if module in lora.modules else parts
    low_rank = [
        _low_rank(tape, x, columns, name if part == module else part, lora, first, second)
        for part, columns in candidates.items()
        if part in lora.modules
    ]
    return _add(tape, y, _joined(tape, low_rank, y, name), name)


def add_adapter(tape: Tape, x: Tensor, y: Tensor, name: str, lora: Lora) -> Tensor:
    """Add the adapter of one of several separate column-parallel layers to its output `y`.

    All ranks have all rows of the input `x`.
    """
    outputs, alone = y.width * tape.microbatch.tensor.num_ranks, without_ranks(tape.microbatch)
    first = partial(replicated_linear, tape, in_fp8=False)
    second = partial(column_linear, tape, **_NARROW, input_of=alone)
    return _add(tape, y, _low_rank(tape, x, outputs, name, lora, first, second), name)


def adapted_row(
    tape: Tape, x: Tensor, name: str, label: str, lora: Lora | None, module: str, *, bias: bool
) -> Tensor:
    """Record a row-parallel linear layer with its adapter, if it has one, as `row_linear` does."""
    if lora is None or not lora.adapts(module):
        return row_linear(tape, x, name, label, bias=bias)
    batch, separate = tape.microbatch, tape.microbatch.kernels.separate_projections
    alone = without_ranks(batch)
    inner = alone if separate else replace(batch, sequence_parallel=False)
    y = row_linear(tape, x, name, label, bias=bias, output_of=alone if separate else batch)

    def first(x: Tensor, rank: int, title: str) -> Tensor:
        return row_linear(tape, x, title, bias=False, outputs=rank, in_fp8=False, output_of=inner)

    def second(x: Tensor, outputs: int, title: str) -> Tensor:
        if separate:
            return replicated_linear(tape, x, outputs, title, in_fp8=False)
        z = column_linear(tape, x, outputs, title, input_of=inner, **_NARROW)
        return gather_columns(tape, z, f"{title} gather")

    z = _low_rank(tape, x, y.width, name, lora, first, second)
    y = _add(tape, y, z, name)
    if not separate or batch.tensor.num_ranks == 1:
        return y
    if batch.sequence_parallel:
        return reduce_scatter(tape, y, batch.tensor, f"{label} ḡ")
    return all_reduce(tape, y, batch.tensor, f"{label} f̄")


def _low_rank(
    tape: Tape, x: Tensor, outputs: int, name: str, lora: Lora, first: Product, second: Product
) -> Tensor:
    """Record an adapter alone: dropout, the products with A and with B, and the scaling."""
    title = f"{name} adapter"
    with tape.training():
        z = dropout(tape, x, f"{title} dropout") if lora.dropout else x
        y = second(first(z, lora.rank, f"{title} in"), outputs, f"{title} out")
        scaled, size = tape.tensor(f"{title} output", y.rows, y.width), y.num_bytes
        forward = elementwise(f"{title} scale", size, size)
        backward = elementwise(f"{title} scale gradient", size, size, Phase.INPUT_GRADIENT)
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
