"""Norms and rotation of query heads and key heads, before attention.

Each is one kernel on the queries and one on the keys in each direction, or several eager kernels.
Their outputs are new tensors; values stay in the output of the QKV product.
"""

from __future__ import annotations

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.eager import (
    complex_rotation_kernels,
    rms_norm_kernels,
    rotation_kernels,
)
from simtrain.workload.blocks.norm import norm_parameters
from simtrain.workload.ops import Ops, Tensor, elementwise, gradient
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import KernelFamily


def head_norms(
    tape: Tape, query_key: tuple[Tensor, ...], heads: int, groups: int, kind: Normalization
) -> Tensor:
    """Record norms over the channels of each head, with one weight for queries and one for keys.

    `query_key` is one tensor, or queries and keys. The norms save their input (Megatron-LM's
    q_layernorm and k_layernorm). Each rank has its own heads,
    so the gradients of the weights are partial sums even without sequence parallelism. Their
    reduction, two vectors per layer and iteration, is counted only under sequence parallelism.
    """
    rows, channels = query_key[0].rows, _width(query_key) // (heads + groups)
    weight = Parameter(norm_parameters(kind, channels), is_whole=True)
    family = KernelFamily(kind)
    kernels = _fused(query_key, heads, groups, "norm", family, saves=True)
    if kind == "rms_norm" and not tape.microbatch.kernels.fused_rms_norm:
        kernels = [
            rms_norm_kernels(tape, tape.tensor(part, rows * number, channels), name)
            for part, number, name in (("query", heads, "query norm"), ("key", groups, "key norm"))
        ]
    return _on_both(tape, query_key, "norm", kernels, parameters=(weight, weight))


def rotary(tape: Tape, query_key: tuple[Tensor, ...], heads: int, groups: int) -> Tensor:
    """Record the rotary position embedding (Su et al. 2021), which saves nothing.

    `query_key` is one tensor, or queries and keys. The table of sines and cosines, s rows for all
    sequences and heads, is not counted.
    """
    kernels = _fused(query_key, heads, groups, "rotation", KernelFamily.ROTARY)
    if not tape.microbatch.kernels.fused_rotary:
        is_complex = tape.microbatch.kernels.complex_rotary
        kernels_of = complex_rotation_kernels if is_complex else rotation_kernels
        sizes = _sizes(query_key, heads, groups)
        kernels = [kernels_of(f"{part} rotation", size) for part, size in sizes.items()]
    return _on_both(tape, query_key, "rotation", kernels)


def _width(query_key: tuple[Tensor, ...]) -> int:
    return sum(tensor.width for tensor in query_key)


def _sizes(query_key: tuple[Tensor, ...], heads: int, groups: int) -> dict[str, int]:
    """Bytes of the queries and of the keys."""
    size = sum(tensor.num_bytes for tensor in query_key)
    return {"query": size * heads // (heads + groups), "key": size * groups // (heads + groups)}


def _fused(
    query_key: tuple[Tensor, ...],
    heads: int,
    groups: int,
    name: str,
    family: KernelFamily,
    *,
    saves: bool = False,
) -> list[tuple[Ops, Ops]]:
    """Return one kernel per direction for queries and for keys; `saves`: its input."""
    kernels: list[tuple[Ops, Ops]] = []
    inputs = query_key[:1], query_key[-1:]
    for (part, size), x in zip(_sizes(query_key, heads, groups).items(), inputs, strict=True):
        saved = x if saves else ()
        forward = elementwise(f"{part} {name}", size, size, saves=saved, family=family)
        read_bytes = (1 + saves) * size
        backward = gradient(f"{part} {name}", read_bytes, size, reads=saved, family=family)
        kernels.append(((forward,), (backward,)))
    return kernels


def _on_both(
    tape: Tape,
    query_key: tuple[Tensor, ...],
    name: str,
    kernels: list[tuple[Ops, Ops]],
    parameters: tuple[Parameter, ...] = (),
) -> Tensor:
    """Record the kernels on the queries, then the kernels on the keys."""
    y = tape.tensor(f"query and key {name} output", query_key[0].rows, _width(query_key))
    (query, query_back), (key, key_back) = kernels
    forward, backward = query + key, query_back + key_back
    label = f"query and key {name}"
    tape.record(label, query_key, (y,), forward, backward, parameters=parameters)
    return y
