"""Attention and a layer whose sequences are divided over ranks, compared with one rank."""

import pathlib
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from calibrate.torch_model.layer import ContextRing, Recompute, TorchLayer, ring_core
from calibrate.torch_model.shape import LayerShape
from tests.helpers.torch_ranks import relative_error

HEADS, GROUPS, TOKENS, CHANNELS = 4, 2, 24, 8


def run_rank(rank: int, folder: str, num_ranks: int) -> None:
    """Run a gloo rank, and write its errors of outputs and gradients to one file per rank."""
    torch.set_num_threads(1)
    path = pathlib.Path(folder)
    meeting = (path / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_ranks)
    ring = ContextRing(num_ranks)
    own = ring.positions(TOKENS // num_ranks, "cpu")
    torch.save((attention_errors(ring, own), layer_errors(ring, own)), path / f"{rank}.pt")
    dist.destroy_process_group()


def attention_errors(ring: ContextRing, own: Tensor) -> list[float]:
    """Return the errors of the output and of the gradients of queries, keys and values."""
    torch.manual_seed(1)
    heads = HEADS, GROUPS, GROUPS, HEADS
    drawn = [torch.randn(number, TOKENS, CHANNELS, dtype=torch.float64) for number in heads]
    *whole, gradient = drawn
    parts = [each[:, own].clone().requires_grad_() for each in whole]
    output = ring_core(*parts, ring)
    output.backward(gradient[:, own])

    for each in whole:
        each.requires_grad_()
    query, *keys = whole
    repeated = [each.repeat_interleave(HEADS // GROUPS, 0) for each in keys]
    expected = functional.scaled_dot_product_attention(query, *repeated, is_causal=True)
    expected.backward(gradient)

    pairs = [(output, expected), *((p.grad, w.grad) for p, w in zip(parts, whole, strict=True))]
    return [relative_error(ours, all_of[:, own]) for ours, all_of in pairs]


def layer_errors(ring: ContextRing, own: Tensor) -> list[float]:
    """Return the errors of a layer's output and input gradient, two sequences at a time."""
    whole = LayerShape(
        seq_length=TOKENS,
        microbatch=2,
        hidden=HEADS * CHANNELS,
        heads=HEADS,
        ffn=48,
        vocab=8,
        tensor=1,
        sequence_parallel=False,
        groups=GROUPS,
        is_llama=True,
    )
    divided = replace(whole, seq_length=TOKENS // ring.size, context=ring.size)
    torch.manual_seed(1)
    hidden, gradient = torch.randn(2, TOKENS, 2, whole.hidden)
    found = []
    for shape, tokens in ((whole, slice(None)), (divided, own)):
        torch.manual_seed(2)
        layer = TorchLayer(shape, Recompute.FULL)
        given = hidden[tokens].clone().requires_grad_()
        output = layer(given)
        output.backward(gradient[tokens])
        found.append((output, given.grad))
    expected, ours = found
    return [relative_error(mine, all_of[own]) for mine, all_of in zip(ours, expected, strict=True)]
