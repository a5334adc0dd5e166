"""What is done to the heads of queries and of keys before attention: norms and rotation.

Each is a kernel on the queries and one on the keys, forward and backward, or several of eager
PyTorch. Their outputs are new tensors; values stay where the product left them.
"""

from __future__ import annotations

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.eager import Ops, rms_norm_kernels, rotation_kernels
from simtrain.workload.blocks.norm import norm_parameters
from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import KernelFamily


def head_norms(
    tape: Tape, query_key: Tensor, heads: int, groups: int, kind: Normalization
) -> Tensor:
    """Norms over the channels of each head, with one weight for queries and one for keys.

    Save their input (Megatron-LM's q_layernorm and k_layernorm). Each rank sees its own heads, so
    that the weights' gradients are partial sums even without sequence parallelism; their reduction,
    of two vectors a layer in an iteration, is counted under sequence parallelism alone.
    """
    channels = query_key.width // (heads + groups)
    weight = Parameter(norm_parameters(kind, channels), is_whole=True)
    family = KernelFamily(kind)
    kernels = _fused(query_key, heads, groups, "norm", family, saves=(query_key,))
    if kind == "rms_norm" and not tape.microbatch.kernels.fused_rms_norm:
        kernels = [
            rms_norm_kernels(tape, tape.tensor(part, query_key.rows * number, channels), name)
            for part, number, name in (("query", heads, "query norm"), ("key", groups, "key norm"))
        ]
    return _on_both(tape, query_key, "norm", kernels, parameters=(weight, weight))


def rotary(tape: Tape, query_key: Tensor, heads: int, groups: int) -> Tensor:
    """Rotary position embedding (Su et al. 2021), which has no parameters and saves nothing.

    The table of sines and cosines is not counted: it has s rows for all sequences and heads.
    """
    kernels = _fused(query_key, heads, groups, "rotation", KernelFamily.ROTARY)
    if not tape.microbatch.kernels.fused_rotary:
        sizes = _sizes(query_key, heads, groups)
        kernels = [rotation_kernels(f"{part} rotation", size) for part, size in sizes.items()]
    return _on_both(tape, query_key, "rotation", kernels)


def _sizes(query_key: Tensor, heads: int, groups: int) -> dict[str, int]:
    """Bytes of the queries and of the keys."""
    size = query_key.num_bytes
    return {"query": size * heads // (heads + groups), "key": size * groups // (heads + groups)}


def _fused(
    query_key: Tensor,
    heads: int,
    groups: int,
    name: str,
    family: KernelFamily,
    saves: tuple[Tensor, ...] = (),
) -> list[tuple[Ops, Ops]]:
    """For queries and for keys one kernel each way; the gradient also reads what is saved."""
    num_read, phase = 1 + len(saves), Phase.INPUT_GRADIENT
    kernels: list[tuple[Ops, Ops]] = []
    for part, size in _sizes(query_key, heads, groups).items():
        forward = elementwise(f"{part} {name}", size, size, saves=saves, family=family)
        sizes = num_read * size, size
        backward = elementwise(f"{part} {name} gradient", *sizes, phase, reads=saves, family=family)
        kernels.append(((forward,), (backward,)))
    return kernels


def _on_both(
    tape: Tape,
    query_key: Tensor,
    name: str,
    kernels: list[tuple[Ops, Ops]],
    parameters: tuple[Parameter, ...] = (),
) -> Tensor:
    """The kernels on the queries, then those on the keys, forward and backward."""
    y = tape.tensor(f"query and key {name} output", query_key.rows, query_key.width)
    (query, query_back), (key, key_back) = kernels
    forward, backward = (*query, *key), (*query_back, *key_back)
    return tape.kernels(f"query and key {name}", query_key, y, forward, backward, parameters)
