"""Bytes that torch's autograd saves beside frozen weights, and the simulated ones."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from simtrain.base.mesh import Group
from simtrain.scenario.model import Lora
from simtrain.scenario.software import PAPER_KERNELS
from simtrain.workload.blocks import (
    activation,
    adapted_column,
    adapted_row,
    column_linear,
    row_linear,
)
from simtrain.workload.issue import IssueOrder, OverlapPolicy
from simtrain.workload.tape import Microbatch, Tape

pytestmark = pytest.mark.slow

TOKENS, HIDDEN, FFN, RANK = 24, 32, 80, 4
MODULES = ("linear_fc1", "linear_fc2")
ALONE = Microbatch(TOKENS, 1, HIDDEN, Group(("tp",), 1, 1), element_bytes=4, is_frozen=True)


class Linear(nn.Module):
    """A frozen linear layer, with an adapter if it is adapted (Hu et al. 2021)."""

    def __init__(self, inputs: int, outputs: int, *, adapted: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        sizes = ((inputs, RANK), (RANK, outputs)) if adapted else ()
        self.adapter = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))
        self.adapted = adapted

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y + self.adapter(x) * 2.0 if self.adapted else y


def torch_bytes(modules: tuple[str, ...], *, input_has_gradient: bool) -> int:
    """Count the storages that the MLP's backward pass keeps, without parameters."""
    first = Linear(HIDDEN, FFN, adapted=MODULES[0] in modules)
    last = Linear(FFN, HIDDEN, adapted=MODULES[1] in modules)
    parameters = {each.untyped_storage().data_ptr() for each in (*first.parameters(),)}
    parameters |= {each.untyped_storage().data_ptr() for each in (*last.parameters(),)}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(TOKENS, HIDDEN, requires_grad=input_has_gradient)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = [x, hidden := first(x), activated := nn.functional.gelu(hidden), last(activated)]
    assert kept
    return sum(storages.values())


def simulated_bytes(modules: tuple[str, ...], *, input_has_gradient: bool) -> int:
    """Count the storages that the recorded MLP saves."""
    batch = replace(ALONE, kernels=replace(PAPER_KERNELS, fused_activation=True))
    tape, lora = Tape(batch), Lora(rank=RANK, modules=modules)  # type: ignore[arg-type]
    x = tape.tensor("x", TOKENS, HIDDEN)
    tape.with_gradient |= {x} if input_has_gradient else set()
    parts = {MODULES[0]: FFN}
    if MODULES[0] in modules:
        y = adapted_column(tape, x, parts, "up", "up", lora, MODULES[0], bias=False)
    else:
        y = column_linear(tape, x, FFN, "up", bias=False)
    y = activation(tape, y, "GeLU")
    if MODULES[1] in modules:
        adapted_row(tape, y, "down", "down", lora, bias=False)
    else:
        row_linear(tape, y, "down", bias=False)
    order = IssueOrder(OverlapPolicy(frozenset()))
    for node in tape.nodes:
        node.forward(order)
    saved = {tensor for op in order.segment().ops for tensor in op.saves}
    return sum({tensor.storage: tensor.num_bytes for tensor in saved}.values())


@pytest.mark.parametrize("modules", [MODULES, MODULES[:1], MODULES[1:]])
def test_autograd_saves_what_is_simulated(modules: tuple[str, ...]) -> None:
    """With x, up's output, GeLU's output and two products with A: 4 (2 · 80 + 32 + 2 · 4) bytes a
    token; fewer if a layer is not adapted, or if nothing before it is trained.
    """
    for input_has_gradient in (True, False):
        torch_saved = torch_bytes(modules, input_has_gradient=input_has_gradient)
        assert simulated_bytes(modules, input_has_gradient=input_has_gradient) == torch_saved
    if modules == MODULES:
        assert torch_saved == 4 * TOKENS * (2 * FFN + HIDDEN + 2 * RANK)
