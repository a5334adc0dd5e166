"""Nine kinds of programs in torch, small, as people write them who do not know simtrain."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 48, 256
MICROBATCHES = 2
Step = tuple[nn.Module, Any, Any, torch.optim.Optimizer]


class Attention(nn.Module):
    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts.unbind(), is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(is_causal)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens(sequences: int = 2) -> Tensor:
    return torch.zeros(sequences, LENGTH, dtype=torch.long)


def next_token(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def sharded(model: nn.Module, *parts: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*parts, model):
        fully_shard(part, mesh=mesh)
    return model


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return Exchange.apply(gradient.contiguous())


def mixture_with_own_exchanges() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.router = nn.Linear(WIDTH, dist.get_world_size())
            self.expert = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, words: Tensor) -> Tensor:
            x = self.embedding(words).flatten(0, 1)
            weight, chosen = self.router(x).softmax(-1).max(-1)
            order = chosen.argsort()  # each expert takes as many tokens
            y = Exchange.apply(self.expert(Exchange.apply(x[order])))
            back = torch.zeros_like(x).index_add(0, order, y)
            return self.head(x + weight[:, None] * back).view(*words.shape, -1)

    model = Model()
    return model, tokens(), next_token, adam(model)


def state_space() -> Step:
    """Scan chunks of a sequence, as Mamba-2 does without its kernels."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.mix = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
            self.inputs = nn.Linear(WIDTH, 2 * 16 + 1)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, words: Tensor) -> Tensor:
            x = self.embedding(words)
            x = F.silu(self.mix(x.transpose(1, 2))[..., : words.shape[1]]).transpose(1, 2)
            b, c, step = self.inputs(x).split([16, 16, 1], -1)
            decay = F.softplus(step).cumsum(1).neg()
            seen = (decay - decay.transpose(1, 2)).tril().exp().tril()
            y = torch.einsum("bln,bsn,bls,bsd->bld", c, b, seen, x)
            state = torch.zeros(x.shape[0], 16, x.shape[2])
            for part_b, part_x in zip(b.chunk(3, 1), x.chunk(3, 1), strict=True):
                state = 0.9 * state + part_b.transpose(1, 2) @ part_x
            return self.head(y + c @ state)

    model = Model()
    return model, tokens(), next_token, adam(model)


def accumulation_in_the_loss() -> Step:
    model = Decoder()
    sharded(model, *model.blocks)

    def loss(model: Any, batch: list[Tensor]) -> Tensor:
        for part in batch[:-1]:
            model.set_requires_gradient_sync(False)
            (next_token(model, part) / len(batch)).backward()
        model.set_requires_gradient_sync(True)
        return next_token(model, batch[-1]) / len(batch)

    return model, [tokens() for _ in range(MICROBATCHES)], loss, adam(model)


KINDS = {
    "a mixture with its own exchanges": mixture_with_own_exchanges,
    "a state space": state_space,
    "accumulation in the loss": accumulation_in_the_loss,
}
