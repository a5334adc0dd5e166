"""The small GPT in torch: its loss, gradients, their sum over microbatches, and Adam's steps."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from calibrate.torch_model.gpt import Stage, cross_entropy
from calibrate.torch_model.layer import DROPOUT
from calibrate.torch_model.shape import LayerShape
from calibrate.torch_model.training import BETAS, EPSILON, MixedPrecisionAdam
from simtrain.scenario import RecomputePolicy
from tests.helpers.torch_ranks import plain_layer, relative_error, tensors_kept

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
SHAPE = LayerShape(
    seq_length=6,
    microbatch=2,
    hidden=16,
    heads=2,
    ffn=64,
    vocab=11,
    tensor=1,
    sequence_parallel=False,
)
NUM_LAYERS = 3
POLICIES: list[Any] = [
    "none",
    "selective",
    "full",
    {"strategy": "full", "num_layers": 2},
    {"strategy": "full", "method": "block", "num_layers": 1},
]
SEED = 3


def gpt(recompute: Any = "none", *, tied: bool = True, dtype: torch.dtype = torch.float64) -> Stage:
    """Return a GPT with the same weights in each call, large enough that all of them matter."""
    torch.manual_seed(1)
    policy = RecomputePolicy.model_validate(recompute)
    model = Stage(SHAPE, NUM_LAYERS, policy, tied=tied).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return model


def text(seed: int = 2) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    size = SHAPE.seq_length, SHAPE.microbatch
    return torch.randint(SHAPE.vocab, size), torch.randint(SHAPE.vocab, size)


def loss_of(model: Stage, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return the loss with the masks that SEED draws."""
    torch.manual_seed(SEED)
    loss: Tensor = model(tokens, labels)
    return loss


def plain_loss(model: Stage, tokens: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss with torch's own functions and the masks that SEED draws."""
    drawing = gpt(tied=model.output is model.words)
    torch.manual_seed(SEED)
    _, kept = tensors_kept(drawing, tokens, labels)
    first, *masks = (tensor for tensor in kept if tensor.dtype is torch.bool)
    hidden = (model.words[tokens] + model.positions[:, None]) * first / (1 - DROPOUT)
    for layer in model.layers.layers:
        weights = dict(layer.named_parameters())
        scores, *rest = masks[:3]
        by_head = scores.view(SHAPE.microbatch, SHAPE.heads, *scores.shape[1:])
        hidden = plain_layer(hidden, weights, [by_head, *rest], SHAPE.heads)
        masks = masks[3:]
    norm = model.final_norm
    normed = functional.layer_norm(hidden, (SHAPE.hidden,), norm.weight, norm.bias)
    logits = (normed @ model.output.t()).flatten(0, 1)
    return functional.cross_entropy(logits, labels.flatten())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("recompute", POLICIES, ids=str)
def test_loss_and_gradients_equal_a_plain_gpt(recompute: Any, tied: bool) -> None:
    model, plain = gpt(recompute, tied=tied), gpt(tied=tied)
    loss = loss_of(model, *text())
    loss.backward()
    expected = plain_loss(plain, *text())
    expected.backward()
    assert relative_error(loss, expected) < 1e-12
    found = {name: value.grad for name, value in model.named_parameters()}
    assert len(found) == 2 + NUM_LAYERS * 12 + 2 + (not tied)
    for name, value in plain.named_parameters():
        assert relative_error(found[name], value.grad) < 1e-11, name


def test_cross_entropy_equals_torch() -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, 2, 7, requires_grad=True)
    labels = torch.randint(7, (5, 2))
    weights = torch.randn(5, 2)
    (found,) = torch.autograd.grad((cross_entropy(logits, labels) * weights).sum(), logits)
    plain = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    (expected,) = torch.autograd.grad((plain * weights.flatten()).sum(), logits)
    assert relative_error(found, expected) < 1e-6


def test_gradients_of_microbatches_add_up() -> None:
    model, plain = gpt(), gpt()
    optimizer = MixedPrecisionAdam(model.parameters(), learning_rate=1e-3)
    for each in (model, plain):
        for seed in (5, 6):
            loss_of(each, *text(seed)).backward()
    held = sum(gradient.nbytes for gradient in optimizer.gradients)
    assert held == 4 * sum(each.numel() for each in model.parameters())
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert parameter.grad is None
        assert relative_error(parameter.main_grad, expected.grad) < 1e-6


def test_adam_equals_torch() -> None:
    model, plain = gpt(dtype=torch.float32), gpt(dtype=torch.float32)
    ours = MixedPrecisionAdam(model.parameters(), learning_rate=1e-3)
    theirs = torch.optim.Adam(plain.parameters(), lr=1e-3, betas=BETAS, eps=EPSILON, fused=True)
    for seed in (5, 6, 7):
        for each in (model, plain):
            loss_of(each, *text(seed)).backward()
        ours.step()
        theirs.step()
        theirs.zero_grad()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert relative_error(found, expected) < 1e-6
        assert not found.main_grad.any()
