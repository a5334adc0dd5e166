"""A layer of today's dense models in torch: its results, saved bytes and peak memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from calibrate.memory.cases import MemoryCase
from calibrate.memory.measure import measure
from calibrate.torch_model.kernels import rms_norm, rotated, swiglu
from calibrate.torch_model.layer import Recompute, TorchLayer
from calibrate.torch_model.shape import LayerShape
from tests.helpers.plain_kernels import plain_norm, plain_rotation, plain_swiglu
from tests.helpers.small_layers import WIDER_LLAMA
from tests.helpers.toys import scenario_with

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def llama(recompute: Any = "none", layers: int = 1) -> MemoryCase:
    """Return two sequences through `WIDER_LLAMA`."""
    scenario = scenario_with(
        WIDER_LLAMA | {"num_layers": layers},
        batch={"micro": 2, "global": 4},
        attention_backend="fused",
        recompute=recompute,
    )
    return MemoryCase(scenario, whole=False)


@pytest.mark.parametrize(("recompute", "layers"), [("none", 1), ("selective", 1), ("full", 1)])
def test_simulated_memory_equals_torch(recompute: str, layers: int) -> None:
    """Kept bytes agree except for an fp32 number per token and norm; the peak
    agrees within 0.5 %.
    """
    what = llama(recompute, layers)
    measured, simulated = measure(what, "cpu")[0], what.simulated()
    assert measured.states == simulated.states
    norms = 0 if recompute == "full" else 2 * layers
    assert measured.kept == simulated.kept + 4 * 256 * norms + 2
    assert measured.passing == pytest.approx(simulated.passing, rel=0.005)


def test_a_layer_equals_its_blocks_in_plain_torch() -> None:
    """The input is [6, 2, 32]; four heads of eight channels are in two groups, and the gate has 24
    channels.
    """
    sizes = LayerShape.of(llama().scenario)
    sizes = replace(sizes, seq_length=6, hidden=32, heads=4, groups=2, ffn=24)
    torch.manual_seed(0)
    layer = TorchLayer(sizes, Recompute.NONE)
    weights = {name: 5 * torch.randn_like(each) / 32 for name, each in layer.named_parameters()}
    layer.load_state_dict(weights)
    x = torch.randn(6, 2, 32)

    def weight(name: str) -> Tensor:
        return weights[f"{name}weight"]

    normed = plain_norm(x, weight("attention.norm."))
    query, key, value = (normed @ weight("attention.query_key_value_").t()).split((32, 16, 16), -1)
    heads = [
        part.unflatten(-1, (-1, 8)).permute(1, 2, 0, 3)
        for part in (plain_rotation(query), plain_rotation(key), value)
    ]
    context = functional.scaled_dot_product_attention(
        heads[0].float(),
        *(each.repeat_interleave(2, 1).float() for each in heads[1:]),
        is_causal=True,
    )
    merged = context.permute(2, 0, 1, 3).flatten(-2)
    hidden = x + merged @ weight("attention.projection_").t()
    wide = plain_norm(hidden, weight("mlp.norm.")) @ weight("mlp.expansion_").t()
    expected = hidden + plain_swiglu(wide) @ weight("mlp.contraction_").t()
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "plain", "widths"),
    [
        (rms_norm, plain_norm, ((6, 2, 32), (32,))),
        (lambda x: rotated(x, 8), plain_rotation, ((6, 2, 32),)),
        (swiglu, plain_swiglu, ((6, 2, 32),)),
    ],
    ids=["RMS norm", "rotation", "SwiGLU"],
)
def test_fused_kernels_equal_torch(
    ours: Callable[..., Tensor], plain: Callable[..., Tensor], widths: tuple[tuple[int, ...], ...]
) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(width, dtype=torch.float64, requires_grad=True) for width in widths]
    outputs = [function(*inputs) for function in (ours, plain)]
    weights = torch.randn_like(outputs[0])
    gradients = [torch.autograd.grad(output, inputs, weights) for output in outputs]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)
