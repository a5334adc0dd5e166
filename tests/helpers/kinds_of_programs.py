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

    def forward(self, tokens: Tensor, prefix: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens)
        if prefix is not None:
            x = torch.cat([prefix, x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -tokens.shape[1] :])


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


def diffusion_transformer() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(4, WIDTH, 2, stride=2)
            self.times = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
            self.blocks = nn.ModuleList(Block(is_causal=False) for _ in range(2))
            self.shifts = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
            self.out = nn.Linear(WIDTH, 16)

        def forward(self, image: Tensor, time: Tensor) -> Tensor:
            x = self.patches(image).flatten(2).transpose(1, 2)
            angles = time[:, None] * torch.arange(WIDTH // 2)
            condition = self.times(torch.cat([angles.sin(), angles.cos()], -1))
            for block, shifts in zip(self.blocks, self.shifts, strict=True):
                shift, scale = shifts(condition)[:, None].chunk(2, -1)
                x = block(x * (1 + scale) + shift)
            return self.out(x)

    def loss(model: nn.Module, image: Tensor) -> Tensor:
        time = torch.rand(image.shape[0])
        noise = torch.randn_like(image)
        target = F.unfold(noise, 2, stride=2).transpose(1, 2)
        return F.mse_loss(model(image + time[:, None, None, None] * noise, time), target)

    model = Model()
    return model, torch.zeros(2, 4, 16, 16), loss, adam(model)


def frozen_vision_tower() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Sequential(*(Block(is_causal=False) for _ in range(2)))
            self.tower.requires_grad_(False)
            self.bridge, self.decoder = nn.Linear(WIDTH, WIDTH), Decoder()

        def forward(self, images: Tensor, words: Tensor) -> Tensor:
            return self.decoder(words, self.bridge(self.tower(images)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(*batch).flatten(0, 1), batch[1].flatten())

    model = Model()
    sharded(model, *model.tower, *model.decoder.blocks)
    return model, (torch.zeros(2, 16, WIDTH), tokens()), loss, adam(model)


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


def encoder_and_decoder() -> Step:
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 128, batch_first=True)
    sharded(model, *model.encoder.layers, *model.decoder.layers)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(*batch).square().mean()

    batch = torch.zeros(2, 32, WIDTH), torch.zeros(2, 24, WIDTH)
    return model, batch, loss, adam(model)


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


def convolution_and_attention() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(
                nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU()
            )
            self.deeper = nn.Conv2d(32, WIDTH, 3, stride=2, padding=1)
            self.attention = Attention(is_causal=False)
            self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(WIDTH, 16, 3, padding=1))
            self.out = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 3, 1))

        def forward(self, image: Tensor) -> Tensor:
            x = self.deeper(self.down(image))
            y = self.attention(x.flatten(2).transpose(1, 2)).transpose(1, 2)
            return self.out(self.up(x + y.reshape(x.shape)))

    def loss(model: nn.Module, image: Tensor) -> Tensor:
        return F.mse_loss(model(image), image)

    model = Model()
    return model, torch.zeros(2, 3, 16, 16), loss, adam(model)


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def adapters_by_hand() -> Step:
    model = Decoder().requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = Adapted(block.attention.qkv)  # type: ignore[union-attr, assignment, arg-type]
    return model, tokens(), next_token, adam(model)


def shared_weights() -> Step:
    """Tie embedding and head, and run one block four times."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.block = nn.Embedding(VOCABULARY, WIDTH), Block()

        def forward(self, words: Tensor) -> Tensor:
            x = self.embedding(words)
            for _ in range(4):
                x = self.block(x)
            return x @ self.embedding.weight.T

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
    "a diffusion transformer": diffusion_transformer,
    "a frozen vision tower before a decoder": frozen_vision_tower,
    "a mixture with its own exchanges": mixture_with_own_exchanges,
    "an encoder and a decoder": encoder_and_decoder,
    "a state space": state_space,
    "convolutions and attention": convolution_and_attention,
    "adapters by hand": adapters_by_hand,
    "shared weights": shared_weights,
    "accumulation in the loss": accumulation_in_the_loss,
}
