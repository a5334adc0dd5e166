"""Runs layers and small GPTs in torch and compares their memory with simtrain's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calibrate.memory.cases import HeldBytes, MemoryCase, MemoryComparison, MemoryRow, case
from calibrate.torch_model.gpt import LayerStack, Stage
from calibrate.torch_model.models import LayerSize
from calibrate.torch_model.shape import LayerShape
from calibrate.torch_model.training import MixedPrecisionAdam

_TINY = case(LayerSize(64, 1, 64, 1).model(), "none", micro=1, whole=True)


class CudaAllocator(nullcontext[None]):
    """The caching allocator of the current CUDA device; it rounds each tensor up to 512 bytes.

    As a context it does nothing: it always counts.
    """

    def reset_peak(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    @property
    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated()

    @property
    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated()

    @property
    def reserved_bytes(self) -> int:
        return torch.cuda.max_memory_reserved()


class LiveTensors(TorchDispatchMode):
    """Counts the storages of all tensors that ops return within it, while they exist.

    Works on any device, and on torch's meta device without computing anything. Memory that a kernel
    takes and gives back before it returns is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held_bytes = 0
        self.peak_bytes = 0
        self.reserved_bytes = None
        self._known: set[int] = set()

    def reset_peak(self) -> None:
        self.peak_bytes = self.held_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        address, num_bytes = storage._cdata, storage.nbytes()
        if address not in self._known:
            self._known.add(address)
            self.held_bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
            weakref.finalize(storage, self._drop, address, num_bytes)

    def _drop(self, address: int, num_bytes: int) -> None:
        self._known.discard(address)
        self.held_bytes -= num_bytes


Memory = CudaAllocator | LiveTensors


def compare(cases: Sequence[MemoryCase], device: str) -> MemoryComparison:
    """Run the cases on "cuda", or without computing anything on "meta", one after another."""
    counted = "live tensors counted, nothing computed"
    if device == "cuda":
        counted = f"torch.cuda.max_memory_allocated on {torch.cuda.get_device_name()}"
        leave_workspaces()
    rows = []
    for each in cases:
        measured, reserved_bytes = measure(each, device)
        rows.append(
            MemoryRow(each.name, each.recompute, measured, each.simulated(), reserved_bytes)
        )
    return MemoryComparison(counted, rows)


def leave_workspaces() -> None:
    """Allocate the workspaces of cuBLAS, which the first run on CUDA keeps, before any case."""
    measure(_TINY, "cuda")


def measure(what: MemoryCase, device: str) -> tuple[HeldBytes, int | None]:
    """Measure what a case holds in its second iteration, and what the allocator has reserved."""
    memory: Memory = CudaAllocator() if device == "cuda" else LiveTensors()
    gc.collect()
    memory.reset_peak()
    with memory:
        before = memory.held_bytes
        iteration = _training(what, device, memory)
        iteration()
        states = memory.held_bytes
        memory.reset_peak()
        held_bytes = iteration()
    measured = HeldBytes(states - before, held_bytes - states, memory.peak_bytes - before)
    return measured, memory.reserved_bytes


def _training(what: MemoryCase, device: str, memory: Memory) -> Callable[[], int]:
    """Build an iteration, which returns the bytes held after its last forward pass."""
    model = what.scenario.model
    sizes = LayerShape.of(what.scenario), model.num_layers, what.scenario.recompute
    with torch.device(device):
        module = Stage(*sizes, tied=model.tied_embeddings) if what.whole else LayerStack(*sizes)
    module.bfloat16()
    optimizer = MixedPrecisionAdam(module.parameters(), learning_rate=1e-4)
    tokens = model.seq_length, what.scenario.batch.micro

    def microbatch() -> int:
        if what.whole:  # tokens and labels
            inputs = [torch.randint(model.vocab_size, tokens, device=device) for _ in range(2)]
            loss = module(*inputs)
        else:
            size = *tokens, model.hidden_size
            inputs = [torch.randn(size, dtype=torch.bfloat16, device=device, requires_grad=True)]
            loss = _SentOn.apply(module(*inputs))
        del inputs
        loss = loss / what.scenario.num_microbatches
        held_bytes = memory.held_bytes
        loss.backward()
        return held_bytes

    def iteration() -> int:
        held_bytes = [microbatch() for _ in range(what.scenario.num_microbatches)]
        optimizer.step()
        return held_bytes[-1]

    return iteration


class _SentOn(torch.autograd.Function):
    """The next pipeline stage: takes an output, returns a gradient, saves nothing (Appendix B)."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.shape, ctx.kind = output.shape, {"dtype": output.dtype, "device": output.device}
        return output.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> Tensor:
        return torch.ones(ctx.shape, **ctx.kind)


THRESHOLD = 0.03
"""Largest |error| of a peak, and of the part of it that comes and goes."""
