"""Sizes of parameters of which `FullyShardedDataParallel` keeps a rank's part."""

from __future__ import annotations

import torch
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
