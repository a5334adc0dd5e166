"""Measures the memory of tensors: by CUDA's allocator, or tensor by tensor."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class CudaAllocator(nullcontext[None]):
    """The caching allocator of the current CUDA device; it rounds each tensor up to 512 bytes.

    As a context it does nothing: it always counts.
    """

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
        """Start a new peak: the bytes that are held now."""
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
