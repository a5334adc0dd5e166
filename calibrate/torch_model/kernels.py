"""What is one kernel in a training framework, as one in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

Tensors = tuple[Tensor, ...]


def kernel(compute: Callable[..., Tensors], *given: Any) -> Tensors:
    """The results of a function of a tensor and more, as if it were one kernel.

    On a GPU it is compiled to one. Elsewhere torch runs it op by op, and nobody counts the tensors
    between them.
    """
    if given[0].is_cuda:
        return _compiled(compute)(*given)
    with _disable_current_modes():
        results = compute(*given)
    return tuple(result.view(result.shape) for result in results)


@cache
def _compiled(compute: Callable[..., Tensors]) -> Callable[..., Tensors]:
    return torch.compile(compute, fullgraph=True, dynamic=True)
