"""A stand-in for `DistributedDataParallel`, whose reducer in C++ takes no fake tensors.

Source: torch/csrc/distributed/c10d/reducer.cpp. Gradients are divided by the number of ranks and
copied into buckets; a full bucket is all-reduced while the backward pass goes on; at its end all
buckets are waited for and copied back. The first bucket has at least 1 MiB, others 25 MiB;
with a size of the user's own, all have that size. After the first backward pass, buckets follow the
order in which gradients were ready.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simtrain.guests.recording.child import torch_internals as private

FIRST_BYTES = 1 << 20
"""Size of the first bucket (`dist._DEFAULT_FIRST_BUCKET_BYTES`)."""
_MIB = 1 << 20


@dataclass(eq=False)
class Bucket:
    """Gradients that are reduced together.

    Args:
        parameters: in order.
        buffer: all gradients, one after another.
        views: the part of each parameter.
    """

    parameters: list[nn.Parameter]
    buffer: Tensor
    views: list[Tensor]
    num_ready: int = 0
    work: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter]) -> Bucket:
        """Allocate the bucket of some parameters of one type."""
        sizes = [each.numel() for each in parameters]
        buffer = torch.empty(sum(sizes), dtype=parameters[0].dtype)
        parts = zip(buffer.split(sizes), parameters, strict=True)
        return cls([*parameters], buffer, [part.view(each.shape) for part, each in parts])


def buckets_of(
    parameters: Sequence[nn.Parameter], first_bytes: int, bucket_bytes: int
) -> list[list[nn.Parameter]]:
    """Cut parameters into buckets (`compute_bucket_assignment_by_size`).

    A bucket ends with the parameter that fills it. Each type has buckets of its own, in the order
    of their first parameters.
    """
    limits: dict[torch.dtype, int] = {}
    last: dict[torch.dtype, list[nn.Parameter]] = {}
    sizes: dict[torch.dtype, int] = {}
    places = {id(each): place for place, each in enumerate(parameters)}
    buckets: list[list[nn.Parameter]] = []
    for each in parameters:
        bucket = last.setdefault(each.dtype, [])
        bucket.append(each)
        sizes[each.dtype] = sizes.get(each.dtype, 0) + each.numel() * each.element_size()
        if sizes[each.dtype] >= limits.get(each.dtype, first_bytes):
            buckets.append(last.pop(each.dtype))
            limits[each.dtype], sizes[each.dtype] = bucket_bytes, 0
    buckets += last.values()
    return sorted(buckets, key=lambda bucket: places[id(bucket[0])])


class Replicas(nn.Module):
    """Stands for `DistributedDataParallel`, with its arguments."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.module, self.process_group = module, process_group
        self._sends_buffers, self._has_views = broadcast_buffers, gradient_as_bucket_view
        self._bucket_bytes = math.floor((bucket_cap_mb or 25) * _MIB)
        self._first_bytes = self._bucket_bytes if bucket_cap_mb else FIRST_BYTES
        self._reduces = True
        self._arrived: list[nn.Parameter] | None = []
        trained = [each for each in module.parameters() if each.requires_grad]
        self._make_buckets(trained[::-1])
        for each in trained:
            each.register_post_accumulate_grad_hook(self._ready)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module, with the buffers of the first rank."""
        if self._sends_buffers and self._reduces:
            self._send_buffers()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add gradients without reducing them inside the `with` block."""
        self._reduces = False
        try:
            yield
        finally:
            self._reduces = True

    def _make_buckets(self, parameters: Sequence[nn.Parameter]) -> None:
        sizes = self._first_bytes, self._bucket_bytes
        self._buckets = [Bucket.of(each) for each in buckets_of(parameters, *sizes)]
        self._places = {
            id(each): (bucket, place)
            for bucket in self._buckets
            for place, each in enumerate(bucket.parameters)
        }

    def _send_buffers(self) -> None:
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for each in self.module.buffers():
            kinds.setdefault(each.dtype, []).append(each)
        for buffers in kinds.values():
            joined = torch.cat([each.detach().flatten() for each in buffers])
            dist.broadcast(joined, 0, group=self.process_group)
            parts = joined.split([each.numel() for each in buffers])
            for each, part in zip(buffers, parts, strict=True):
                each.detach().copy_(part.view(each.shape))

    def _ready(self, parameter: nn.Parameter) -> None:
        """Put a gradient into its bucket, and reduce the bucket if it is full."""
        if not self._reduces:
            return
        if not any(bucket.num_ready for bucket in self._buckets):
            private.execution_engine.queue_callback(self._finish)
        if self._arrived is not None:
            self._arrived.append(parameter)
        bucket, place = self._places[id(parameter)]
        assert parameter.grad is not None, "the hook follows the gradient"
        with torch.no_grad():
            ranks = dist.get_world_size(self.process_group)
            torch.mul(parameter.grad, 1 / ranks, out=bucket.views[place])
            if self._has_views:
                parameter.grad = bucket.views[place]
        bucket.num_ready += 1
        if bucket.num_ready == len(bucket.parameters):
            group = self.process_group
            bucket.work = dist.all_reduce(bucket.buffer, group=group, async_op=True)

    def _finish(self) -> None:
        """Wait for all buckets and copy their gradients back."""
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.work, bucket.num_ready = None, 0
            if self._has_views:
                continue
            for each, view in zip(bucket.parameters, bucket.views, strict=True):
                if each.grad is not None:
                    with torch.no_grad():
                        each.grad.copy_(view)
        if self._arrived:
            self._make_buckets(self._arrived)
        self._arrived = None
