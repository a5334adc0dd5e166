"""A small GPT on the CPU, as PyTorch's profiler sees it train."""

from __future__ import annotations

import pathlib

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS, HIDDEN, HEADS, VOCABULARY, TOKENS, SEQUENCES = 2, 64, 4, 128, 32, 2


class Layer(nn.Module):
    """Attention and an MLP, each behind a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.projection = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).flatten(2))
        hidden: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))
        return hidden


class Gpt(nn.Module):
    """A GPT with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(TOKENS, HIDDEN)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.logits = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(TOKENS))
        logits: Tensor = self.logits(self.norm(self.layers(x)))
        return logits


def profile_gpt(file: pathlib.Path, num_iterations: int, *, has_steps: bool) -> None:
    """Train for some iterations and write their trace, with the profiler's steps or without."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    steps = schedule(wait=0, warmup=1, active=num_iterations) if has_steps else None

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(file))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=write
    ) as profiler:
        for _ in range(num_iterations + has_steps):
            tokens = torch.randint(VOCABULARY, (2, SEQUENCES, TOKENS))
            scores = model(tokens[0]).flatten(0, 1)
            nn.functional.cross_entropy(scores, tokens[1].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if has_steps:
                profiler.step()
