"""Memory of layers in torch that recompute norms or MLPs equals the simulated memory."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrate.memory.cases import MemoryCase
from calibrate.memory.measure import measure
from calibrate.torch_model.kernels import swiglu
from calibrate.torch_model.layer import MLP, TorchLayer, checkpointed
from calibrate.torch_model.parallel import column_parallel, row_parallel
from tests.helpers.small_layers import WIDER_LLAMA
from tests.helpers.toys import scenario_with

pytestmark = pytest.mark.slow
torch.set_num_threads(1)


def layers(stack: str, *modules: str) -> MemoryCase:
    """Return two layers with two sequences of 128 tokens."""
    batch, software = {"micro": 2, "global": 4}, {"stack": stack}
    recompute = {"modules": [*modules]}
    scenario = scenario_with(
        WIDER_LLAMA, batch=batch, software=software, attention_backend="fused", recompute=recompute
    )
    return MemoryCase(scenario, whole=False)


class UnsavedNorm(nn.Module):
    """Norm whose output is not saved, as by Megatron-Core's CheckpointWithoutOutput."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight
        self.norm = norm
        self.storage = 0
        self.given: Tensor | None = None
        self.again: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = RunsAgain.apply(self, x)
        self.storage = y.untyped_storage()._cdata
        return y

    def pack(self, tensor: Tensor) -> Any:
        if tensor.untyped_storage()._cdata != self.storage:
            return tensor.detach()
        self.storage = 0  # freed: the next tensor may have its address
        return tensor.size(), tensor.stride()

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        assert self.again is not None
        return self.again.detach().as_strided(*packed)


class RunsAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: UnsavedNorm, x: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        y: Tensor = module.norm(x)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        x, again = ctx.module.given, ctx.module.again
        ctx.module.given = ctx.module.again = None
        torch.autograd.backward(again, gradient)
        return None, x.grad


def forward_with_unsaved_norms(self: TorchLayer, hidden: Tensor) -> Tensor:
    """Run attention and MLP; each runs its norm again when the gradient of its output exists."""
    for branch in (self.attention, self.mlp):
        if not isinstance(branch.norm, UnsavedNorm):
            branch.norm = UnsavedNorm(branch.norm)
        norm = branch.norm
        with torch.autograd.graph.saved_tensors_hooks(norm.pack, norm.unpack):
            output = branch(hidden)

        def run_again(_: Tensor, norm: UnsavedNorm = norm, x: Tensor = hidden) -> None:
            norm.given = x.detach().requires_grad_()
            with torch.enable_grad():
                norm.again = norm.norm(norm.given)

        output.register_hook(run_again)
        hidden = output
    return hidden


def products(self: MLP, normed: Tensor) -> Tensor:
    wide = column_parallel(normed, self.expansion_weight, self.group)
    return row_parallel(swiglu(wide), self.contraction_weight, self.group)


def without_norm(self: MLP, hidden: Tensor) -> Tensor:
    return checkpointed(lambda x: products(self, x), self.norm(hidden)).add_(hidden)


def with_norm(self: MLP, hidden: Tensor) -> Tensor:
    return checkpointed(lambda x: products(self, self.norm(x)), hidden).add_(hidden)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("stack", "module", "changed", "function", "norms"),
    [
        ("megatron_2022", "layernorm", TorchLayer, forward_with_unsaved_norms, 0),
        ("megatron_2022", "mlp", MLP, without_norm, 4),
        ("megatron_core", "mlp", MLP, with_norm, 2),
    ],
)
def test_simulated_memory_equals_torch(
    stack: str,
    module: str,
    changed: Any,
    function: Any,
    norms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kept bytes agree except for an fp32 number per token and saved norm; the peak agrees within
    0.5 %.
    """
    monkeypatch.setattr(changed, "forward", function)
    what = layers(stack, module)
    measured, simulated = measure(what, "meta")[0], what.simulated()
    assert measured.states == simulated.states
    assert measured.kept == simulated.kept + 4 * 256 * norms + 2
    assert measured.passing == pytest.approx(simulated.passing, rel=0.005)
