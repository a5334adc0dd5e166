"""Programs in torch, as a user writes them; `simtrain import --record` records them."""

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

VOCABULARY, LENGTH = 512, 64
Step = tuple[nn.Module, Tensor, Any, torch.optim.Optimizer]


class Layer(nn.Module):
    """A layer of Llama."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.channels = hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q, self.k, self.v, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        parts = [part(y) for part in (self.q, self.k, self.v)]
        batch, length, _ = parts[0].shape
        heads = [part.view(batch, length, -1, self.channels).transpose(1, 2) for part in parts]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A small Llama without position embeddings."""

    def __init__(self, layers: int, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        self.checkpoints = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.head(self.norm(x))


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def llama(layers: int = 2, checkpoints: bool = False, sequences: int = 2) -> Step:
    """Return a model in bf16 on one rank."""
    model = Llama(layers, 64, 4, 256).to(torch.bfloat16)
    model.checkpoints = checkpoints
    batch = torch.zeros(sequences, LENGTH, dtype=torch.long)
    return model, batch, loss, torch.optim.AdamW(model.parameters())


def sharded(layers: int = 2, tensor: int = 1, compiles: bool = False) -> Step:
    """Return a model that fully_shard shards, over ranks of tensor parallelism too."""
    model = Llama(layers, 64, 4, 256)
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // tensor, tensor), mesh_dim_names=("dp", "tp"))
    if tensor > 1:
        _divide(model, mesh["tp"])
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=precision)
    fully_shard(model, mesh=mesh["dp"], mp_policy=precision)
    batch = torch.zeros(2, LENGTH, dtype=torch.long)
    step = torch.compile(loss) if compiles else loss
    return model, batch, step, torch.optim.AdamW(model.parameters(), fused=True)


def replicated(views: bool = False) -> Step:
    """Return a model of which every rank has a replica, with buckets of 2 MiB."""
    model = nn.parallel.DistributedDataParallel(
        Llama(3, 256, 4, 1024), bucket_cap_mb=2, gradient_as_bucket_view=views
    )
    batch = torch.zeros(2, LENGTH, dtype=torch.long)
    return model, batch, loss, torch.optim.AdamW(model.parameters(), fused=True)


def reduced_by_hand(waits_at_once: bool) -> Step:
    """Return a model whose gradients are all-reduced one by one, awaited at once or at the end."""
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    works: list[Any] = []

    def reduce(parameter: nn.Parameter) -> None:
        work = dist.all_reduce(parameter.grad, async_op=not waits_at_once)
        works.extend([] if waits_at_once else [work])

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(reduce)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def wait(*others: Any) -> None:
        for work in works:
            work.wait()
        works.clear()

    optimizer.register_step_pre_hook(wait)
    return model, torch.zeros(8, 256), lambda net, batch: net(batch).square().mean(), optimizer


def _divide(model: Llama, mesh: Any) -> None:
    """Divide a model with tensor and sequence parallelism, as torchtitan does."""
    column, row = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    of_layer: dict[str, Any] = dict.fromkeys(("q", "k", "v", "gate", "up"), column)
    of_layer |= dict.fromkeys(("out", "down"), row)
    of_layer |= dict.fromkeys(("norm1", "norm2"), SequenceParallel())
    for layer in model.layers:
        parallelize_module(layer, mesh, of_layer)


def reads_value() -> Any:
    def wrong(model: nn.Module, batch: Tensor) -> Tensor:
        total = model(batch).sum()
        return total * 2 if total.item() > 0 else total

    return nn.Linear(4, 4), torch.zeros(2, 4), wrong


def calls_cuda() -> Any:
    return nn.Linear(4, 4), torch.cuda.get_rng_state(), loss


def ends_itself() -> Any:
    sys.exit(3)


def lacks_package() -> Any:
    import a_package_that_does_not_exist  # noqa: F401


def raises_error() -> Any:
    raise KeyError("no such key")


def returns_model() -> Any:
    return nn.Linear(4, 4)


def crashes() -> Any:
    import ctypes

    ctypes.string_at(0)


def never_ends() -> Any:
    while True:
        pass


def leaves_a_thread() -> Step:
    threading.Thread(target=time.sleep, args=(500,)).start()
    return llama()


def leaves_a_handler() -> Step:
    atexit.register(time.sleep, 500)
    return llama()


def leaves_at_once() -> Any:
    os._exit(3)


def forks(marker: str) -> Step:
    """Leave a process that does not end, and one that goes on as this one does."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(f"{marker}.new").write_text(str(os.getpid()))
        Path(f"{marker}.new").rename(marker)
        while True:
            time.sleep(1)
    os.fork()
    while not Path(marker).exists():
        time.sleep(0.01)
    return llama()


def waits(marker: str) -> Any:
    """Say that it runs, and wait for ever."""
    Path(f"{marker}.new").write_text(str(os.getpid()))
    Path(f"{marker}.new").rename(marker)
    while True:
        time.sleep(1)


def model_by_hand(layers: int, hidden: int, heads: int, inner: int) -> dict[str, Any]:
    """Return the section `model` that somebody would write for `Llama`."""
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": inner,
        "seq_length": LENGTH,
        "vocab_size": VOCABULARY,
        "tied_embeddings": False,
        "activation": "swiglu",
        "normalization": "rms_norm",
        "position_embedding": "none",
        "biases": False,
        "hidden_dropout": 0,
        "attention_dropout": 0,
    }
