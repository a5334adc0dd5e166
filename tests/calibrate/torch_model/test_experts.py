"""Experts in torch: their output, and the memory of a layer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from calibrate.memory.cases import MemoryCase, case
from calibrate.memory.measure import measure
from calibrate.torch_model.experts import ExpertsMLP
from calibrate.torch_model.models import LayerSize
from calibrate.torch_model.parallel import TensorGroup
from calibrate.torch_model.shape import LayerShape
from tests.helpers.plain_kernels import plain_norm, plain_swiglu

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


def experts(recompute: Any = "none") -> MemoryCase:
    """Return a layer with eight experts of 192 channels, for two sequences of 128 tokens.

    Each token goes to two experts.
    """
    size = LayerSize(256, 8, 128, 2, groups=2, ffn=192, experts=8)
    return case(size.model(), recompute, micro=2, whole=False)


def test_each_token_gets_the_weighted_sum_of_its_experts() -> None:
    torch.manual_seed(0)
    shape = LayerShape.of(experts().scenario)
    mlp = ExpertsMLP(shape, TensorGroup())
    x = torch.randn(8, 2, 256)
    tokens = plain_norm(x, mlp.norm.weight).flatten(0, 1)
    logits = tokens @ mlp.router_weight.t()

    def of_expert(number: int, token: Tensor) -> Tensor:
        wide = mlp.experts_up_weight[number] @ token
        return mlp.experts_down_weight[number] @ plain_swiglu(wide)

    expected = []
    for number, token in enumerate(tokens):
        # Balanced routing: each token has the next two experts.
        chosen = [(2 * number) % 8, (2 * number + 1) % 8]
        weights = logits[number, chosen].softmax(-1)
        expected.append(sum(w * of_expert(e, token) for w, e in zip(weights, chosen, strict=True)))
    torch.testing.assert_close(mlp(x), x + torch.stack(expected).view_as(x), rtol=1e-4, atol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_simulated_memory_equals_torch(recompute: str) -> None:
    """The difference is the auxiliary loss, the probabilities and map of all experts, and the
    norms' statistics.
    """
    what = experts(recompute)
    measured, simulated = measure(what, "cpu")[0], what.simulated()
    assert measured.states == simulated.states
    assert measured.kept == pytest.approx(simulated.kept, rel=0.003)
    assert measured.passing == pytest.approx(simulated.passing, rel=0.015)
    assert measure(what, "meta")[0].kept == measured.kept
