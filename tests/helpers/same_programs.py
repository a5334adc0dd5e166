"""Programs in torch, and the scenarios that somebody would write by hand for them.

Both describe the same model, as torchtitan writes it: `fully_shard` of each layer with parameters
in bf16 and reductions in fp32, gradients clipped to a norm, fused AdamW, and `F.cross_entropy` of
fp32 logits. Experts are those of transformers' Mixtral with grouped products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; `experts` of which each token takes two, or 0."""

    layers: int
    hidden: int
    heads: int
    groups: int
    inner: int
    vocab: int
    length: int
    channels: int
    experts: int = 0


MODELS: Mapping[str, Sizes] = {
    "llama": Sizes(32, 4096, 32, 8, 14336, 128256, 8192, 128),
    "mixtral": Sizes(4, 4096, 32, 8, 14336, 32000, 4096, 128, experts=8),
}
"""Llama 3 8B, and four layers of Mixtral 8x7B."""
SMALL: Mapping[str, Sizes] = {
    "llama": Sizes(3, 256, 4, 2, 512, 512, 128, 64),
    "mixtral": Sizes(3, 256, 4, 2, 512, 512, 128, 64, experts=8),
}
TOP_K = 2
NORM = partial(nn.RMSNorm, eps=1e-5)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.channels, self.repeats = sizes.channels, sizes.heads // sizes.groups
        wide, narrow = (number * sizes.channels for number in (sizes.heads, sizes.groups))
        linear = partial(nn.Linear, bias=False)
        self.wq, self.wo = linear(sizes.hidden, wide), linear(wide, sizes.hidden)
        self.wk, self.wv = linear(sizes.hidden, narrow), linear(sizes.hidden, narrow)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            project(x).view(batch, length, -1, self.channels)
            for project in (self.wq, self.wk, self.wv)
        )
        query, key = rotated_complex(query, table), rotated_complex(key, table)
        heads = [query, self.repeated(key), self.repeated(value)]
        y = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in heads), is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))

    def repeated(self, x: Tensor) -> Tensor:
        batch, length, groups, channels = x.shape
        wide = x[:, :, :, None, :].expand(batch, length, groups, self.repeats, channels)
        return wide.reshape(batch, length, groups * self.repeats, channels)


def rotated_complex(x: Tensor, table: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table[None, :, None, :]).flatten(3).type_as(x)


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.gate, self.up = (linear(sizes.hidden, sizes.inner) for _ in range(2))
        self.down = linear(sizes.inner, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """As transformers' `MixtralSparseMoeBlock`, with `grouped_mm_experts_forward`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        number, inner, hidden = sizes.experts, sizes.inner, sizes.hidden
        self.router = nn.Linear(hidden, number, bias=False)
        self.up = nn.Parameter(torch.empty(number, 2 * inner, hidden))
        self.down = nn.Parameter(torch.empty(number, hidden, inner))

    def forward(self, x: Tensor) -> Tensor:
        shape, number = x.shape, self.up.shape[0]
        x = x.flatten(0, 1)
        chances, experts = torch.topk(self.router(x).float().softmax(-1), TOP_K, dim=-1)
        chances = (chances / chances.sum(-1, keepdim=True)).type_as(x)
        sorted_experts, order = torch.sort(experts.flatten())
        ends = torch.cumsum(torch.histc(sorted_experts.float(), number, 0, number - 1), 0)
        ends = ends.to(torch.int32)
        y = torch._grouped_mm(x[order // TOP_K], self.up.transpose(-2, -1), offs=ends)
        gate, values = y.chunk(2, -1)
        y = torch._grouped_mm(F.silu(gate) * values, self.down.transpose(-2, -1), offs=ends)
        y = y * chances.flatten()[order][:, None]
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        return y[inverse].view(-1, TOP_K, shape[-1]).sum(1).view(shape)


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = (NORM(sizes.hidden) for _ in range(2))
        self.attention = Attention(sizes)
        self.mlp = (Experts if sizes.experts else Mlp)(sizes)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), table)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = NORM(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        half = torch.ones(sizes.length, sizes.channels // 2)
        self.register_buffer("table", torch.polar(half, half), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.table)
        return self.head(self.norm(x))


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens)  # held until the loss is computed, as torchtitan's train.py holds it
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def train(sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Return the step of a model, sharded over all ranks."""
    of_model = Sizes(**sizes)
    model = Decoder(of_model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=True, **options)
    fully_shard(model, reshard_after_forward=True, **options)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)

    optimizer.register_step_pre_hook(clip)
    batch = torch.zeros(1, of_model.length, dtype=torch.long)
    return model, batch, loss, optimizer


def by_hand(sizes: Sizes, gpus: int) -> dict[str, Any]:
    """Return the scenario of the same model, without its cluster."""
    model: dict[str, Any] = {
        "num_layers": sizes.layers,
        "hidden_size": sizes.hidden,
        "num_attention_heads": sizes.heads,
        "num_query_groups": sizes.groups,
        "kv_channels": sizes.channels,
        "seq_length": sizes.length,
        "vocab_size": sizes.vocab,
        "tied_embeddings": False,
        "activation": "swiglu",
        "normalization": "rms_norm",
        "position_embedding": "rope",
        "biases": False,
        "hidden_dropout": 0,
        "attention_dropout": 0,
    }
    if sizes.experts:
        experts = {"num": sizes.experts, "top_k": TOP_K, "ffn_hidden_size": sizes.inner}
        model["experts"] = experts
    else:
        model["ffn_hidden_size"] = sizes.inner
    software = {"stack": "torchtitan", "fused_rms_norm": True}  # as torch runs it since 2.9
    return {
        "model": model,
        "parallelism": {"data": gpus},
        "batch": {"micro": 1, "global": gpus},
        "memory": {"zero_stage": 3},
        "overlap": {"data_parallel": True},
        "software": software,
    }
