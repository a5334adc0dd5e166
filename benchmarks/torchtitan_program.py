"""torchtitan's Llama of 2024 in short, for `simtrain import --record` (docs/recorded_programs).

Sources, all of pytorch/torchtitan at commit 1d5815c4b: models/llama/model.py, models/norms.py and
parallelisms/parallelize_llama.py (`apply_ac`, `apply_fsdp`). docs/performance.md there has the
measured throughputs.
"""

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils import checkpoint

SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""Ops whose outputs selective checkpointing keeps, of the products every second one."""


class RMSNorm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return normed.type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.channels, self.repeats = hidden // heads, heads // groups
        self.wq, self.wo = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        narrow = groups * self.channels
        self.wk, self.wv = (nn.Linear(hidden, narrow, bias=False) for _ in range(2))

    def forward(self, x: Tensor, rotations: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            project(x).view(batch, length, -1, self.channels)
            for project in (self.wq, self.wk, self.wv)
        )
        query, key = rotated(query, rotations), rotated(key, rotations)
        heads = [query, self._repeated(key), self._repeated(value)]
        y = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in heads), is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, length, -1))

    def _repeated(self, x: Tensor) -> Tensor:
        if self.repeats == 1:
            return x
        batch, length, groups, channels = x.shape
        wide = x[:, :, :, None, :].expand(batch, length, groups, self.repeats, channels)
        return wide.reshape(batch, length, groups * self.repeats, channels)


def rotated(x: Tensor, rotations: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * rotations[: x.shape[1]].view(1, x.shape[1], 1, -1)
    return torch.view_as_real(turned).flatten(3).type_as(x)


class FeedForward(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, hidden: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, groups)
        self.feed_forward = FeedForward(hidden, inner)
        self.attention_norm, self.ffn_norm = RMSNorm(hidden), RMSNorm(hidden)

    def forward(self, x: Tensor, rotations: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotations)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(
        self, layers: int, hidden: int, heads: int, groups: int, inner: int, vocab: int, length: int
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(
            TransformerBlock(hidden, heads, groups, inner) for _ in range(layers)
        )
        self.norm = RMSNorm(hidden)
        self.output = nn.Linear(hidden, vocab, bias=False)
        channels = hidden // heads
        speeds = 1.0 / (500000.0 ** (torch.arange(0, channels, 2).float() / channels))
        angles = torch.outer(torch.arange(length).float(), speeds)
        rotations = torch.polar(torch.ones_like(angles), angles)
        self.register_buffer("rotations", rotations, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.rotations)
        return self.output(self.norm(x))


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def checkpointed(layer: nn.Module, ac: str) -> nn.Module:
    """Wrap a layer: "full" recomputes all of it, "op" all but `SAVED`."""
    if ac == "full":
        return checkpoint_wrapper(layer, preserve_rng_state=False)

    def contexts() -> Any:
        products: dict[bool, int] = defaultdict(int)

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            is_product = op == torch.ops.aten.mm.default
            products[context.is_recompute] += is_product
            is_second = is_product and products[context.is_recompute] % 2 == 0
            choice = checkpoint.CheckpointPolicy
            keeps = op in SAVED and not is_second
            return choice.MUST_SAVE if keeps else choice.PREFER_RECOMPUTE

        return checkpoint.create_selective_checkpoint_contexts(policy)

    return checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)


def train(
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    groups: int = 8,
    inner: int = 14336,
    vocab: int = 128256,
    length: int = 8192,
    sequences: int = 2,
    ac: str = "op",
) -> tuple[nn.Module, Tensor, Any, torch.optim.Optimizer]:
    """Build a model; the defaults are Llama 3 8B."""
    model = Transformer(layers, hidden, heads, groups, inner, vocab, length)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpointed(layer, ac)
    for number, layer in enumerate(model.layers):
        is_last = number == layers - 1  # its parameters are needed again at once
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=not is_last)
    fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    batch = torch.zeros(sequences, length, dtype=torch.long)
    return model, batch, loss, torch.optim.AdamW(model.parameters(), fused=True)
