"""`FullyShardedDataParallel`, whose flat parameters have storages without addresses here.

It compares addresses of storages to find out which parameters were replaced. Fake tensors have
none, so their storages are compared instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch.distributed.fsdp import _flat_param
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles


def sizes_of(model: torch.nn.Module) -> dict[int, int]:
    """Return the elements of the whole model's parameters, by the identity of this rank's part.

    Parts of flat parameters have the elements of this rank; the first part stands for all of them.
    """
    sizes = {id(each): each.numel() for each in model.parameters()}
    for handle in _get_fsdp_handles(model):
        flat = handle.flat_param
        parts = [each for each in (flat, *(flat._params or ())) if id(each) in sizes]
        sizes |= {id(each): 0 for each in parts}
        trained = [each for each in parts if each.requires_grad] or parts
        sizes[id(trained[0])] = sum(flat._numels)
    return sizes


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _is_allocated(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > 0


@contextmanager
def patched() -> Iterator[None]:
    """Compare storages instead of addresses inside the `with` block."""
    with (
        mock.patch.object(_flat_param, "_same_storage", _is_same),
        mock.patch.object(_flat_param, "_data_ptr_allocated", _is_allocated),
    ):
        yield
