"""What is done to the heads of queries and of keys before attention: norms and rotation.

Each is a kernel on the queries and one on the keys, forward and backward. Their outputs are new
tensors; values stay where the product left them.
"""

from __future__ import annotations

from simtrain.scenario.model import Normalization
from simtrain.workload.blocks.norm import norm_parameters
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Phase, Tensor, elementwise
from simtrain.workload.tape import Parameter, Tape


def head_norms(
    tape: Tape, query_key: Tensor, heads: int, groups: int, kind: Normalization
) -> Tensor:
    """Norms over the channels of each head, with one weight for queries and one for keys.

    Save their input (Megatron-LM's q_layernorm and k_layernorm). Each rank sees its own heads, so
    that the weights' gradients are partial sums even without sequence parallelism; their reduction,
    of two vectors a layer in an iteration, is counted under sequence parallelism alone.
    """
    weight = Parameter(norm_parameters(kind, query_key.width // (heads + groups)), is_whole=True)
    parameters, saves = (weight, weight), (query_key,)
    return _on_both(tape, query_key, (heads, groups), "norm", saves=saves, parameters=parameters)


def rotary(tape: Tape, query_key: Tensor, heads: int, groups: int) -> Tensor:
    """Rotary position embedding (Su et al. 2021), which has no parameters and saves nothing.

    The table of sines and cosines is not counted: it has s rows for all sequences and heads.
    """
    return _on_both(tape, query_key, (heads, groups), "rotation")


def _on_both(
    tape: Tape,
    query_key: Tensor,
    shares: tuple[int, int],
    name: str,
    *,
    saves: tuple[Tensor, ...] = (),
    parameters: tuple[Parameter, ...] = (),
) -> Tensor:
    """A kernel on the queries and one on the keys; the gradient also reads what is saved."""
    y = tape.tensor(f"query and key {name} output", query_key.rows, query_key.width)
    sizes = {
        part: query_key.num_bytes * share // sum(shares)
        for part, share in zip(("query", "key"), shares, strict=True)
    }
    num_read = 1 + len(saves)

    def forward(order: IssueOrder) -> None:
        for part, size in sizes.items():
            order.compute(elementwise(f"{part} {name}", size, size, saves=saves))

    def backward(order: IssueOrder) -> None:
        phase = Phase.INPUT_GRADIENT
        for part, size in sizes.items():
            op = elementwise(f"{part} {name} gradient", num_read * size, size, phase, reads=saves)
            order.compute(op)

    tape.record(
        f"query and key {name}", (query_key,), (y,), forward, backward, parameters=parameters
    )
    return y
