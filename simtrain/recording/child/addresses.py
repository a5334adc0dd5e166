"""Addresses of fake tensors, by which programs tell storages apart.

Fake tensors have no memory, and torch gives zero as the address of all of them. Flat parameters of
FullyShardedDataParallel and optimizers that Accelerate prepares find tensors by their addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def patched() -> Iterator[None]:
    """Give each fake storage an address of its own inside the `with` block."""
    of_tensor, of_storage = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def storage_address(storage: Any) -> int:
        """Return the address of a storage; zero if it is empty."""
        if storage.device.type != "meta":
            return of_storage(storage)
        number: int = storage._cdata
        return number if storage.nbytes() else 0

    def tensor_address(tensor: torch.Tensor) -> int:
        """Return the address of a tensor's first element."""
        if not isinstance(tensor, FakeTensor):
            return of_tensor(tensor)
        start = storage_address(tensor.untyped_storage())
        return start and start + int(tensor.storage_offset()) * tensor.element_size()

    with (
        mock.patch.object(torch.Tensor, "data_ptr", tensor_address),
        mock.patch.object(torch.UntypedStorage, "data_ptr", storage_address),
    ):
        yield
