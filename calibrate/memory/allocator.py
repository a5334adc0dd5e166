"""Measures the memory of tensors: by CUDA's allocator, or tensor by tensor."""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class CudaAllocator:
    """The caching allocator of the current CUDA device; it rounds each tensor up to 512 bytes."""

    def counting(self) -> AbstractContextManager[None]:
        """Count tensors, which it always does."""
        return nullcontext()

    def reset_peak(self) -> None:
        """Start a new peak with an empty cache."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    @property
    def held_bytes(self) -> int:
        """Bytes of the tensors that exist."""
        return torch.cuda.memory_allocated()

    @property
    def peak_bytes(self) -> int:
        """The most bytes of tensors since the last `reset_peak`."""
        return torch.cuda.max_memory_allocated()

    @property
    def reserved_bytes(self) -> int:
        """The most bytes that the allocator took from the device."""
        return torch.cuda.max_memory_reserved()


class LiveTensors(TorchDispatchMode):
    """Counts the storages of all tensors that ops return, while they exist.

    Works on any device, and on torch's meta device without computing anything. Memory that a kernel
    takes and gives back before it returns is not seen. `peak_by_op` has the bytes at the peak by
    the op that made them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held_bytes = 0
        self.peak_bytes = 0
        self.reserved_bytes = None
        self.peak_by_op: Counter[str] = Counter()
        self._by_op: Counter[str] = Counter()
        self._known: set[int] = set()

    def counting(self) -> AbstractContextManager[Any]:
        """Count the tensors that ops make within."""
        return self

    def reset_peak(self) -> None:
        """Start a new peak: the bytes that are held now."""
        self.peak_bytes = self.held_bytes
        self.peak_by_op = +self._by_op

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage(), str(func))
        return result

    def _add(self, storage: torch.UntypedStorage, op: str) -> None:
        address, num_bytes = storage._cdata, storage.nbytes()
        if address in self._known:
            return
        self._known.add(address)
        self._by_op[op] += num_bytes
        self.held_bytes += num_bytes
        weakref.finalize(storage, self._drop, address, num_bytes, op)
        if self.held_bytes > self.peak_bytes:
            self.reset_peak()

    def _drop(self, address: int, num_bytes: int, op: str) -> None:
        self._known.discard(address)
        self._by_op[op] -= num_bytes
        self.held_bytes -= num_bytes


Memory = CudaAllocator | LiveTensors
