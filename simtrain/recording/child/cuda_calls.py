"""What programs say to CUDA, on the device of a recording.

A recording has one device, "cpu", whose streams and kernels stand for a GPU's. Programs for GPUs
name "cuda": in arguments of functions, in meshes, in contexts and in queries of `torch.cuda`. All
of them get the device of the recording. `torch.cuda.is_available()` stays false, so a program that
chooses its device needs none of this, and packages that need CUDA's libraries do not look for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_CUDA, _DEVICE = "cuda", "cpu"
_CAPABILITY = 9, 0
"""What programs that choose kernels by the GPU are told: that it is as new as Hopper."""


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == _CUDA
    return isinstance(value, str) and value.split(":")[0] == _CUDA


def _moved(value: Any) -> Any:
    """Return the device of the recording in place of a GPU, and anything else as it is."""
    return torch.device(_DEVICE) if _is_cuda(value) else value


class _Devices(TorchFunctionMode):
    """Calls torch's functions with the device of the recording in place of a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function."""
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:  # a GPU until it is used
            return func(*args, **kwargs)
        if any(map(_is_cuda, args)) or _is_cuda(kwargs.get("device")):
            args, kwargs = tree_map(_moved, (args, kwargs))
        return func(*args, **kwargs)


def _named(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose first argument, a type of device, may be that of GPUs."""

    def call(self: Any, device_type: str, *args: Any, **options: Any) -> Any:
        """Call the method."""
        return method(self, _DEVICE if _is_cuda(device_type) else device_type, *args, **options)

    return call


def _placed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose argument `device_id` may be a GPU or its number."""

    def call(self: Any, *args: Any, device_id: Any = None, **options: Any) -> Any:
        """Call the method."""
        place = torch.device(_DEVICE) if isinstance(device_id, int) else _moved(device_id)
        return method(self, *args, device_id=place, **options)

    return call


def _returning(value: Any) -> Callable[..., Any]:
    """Return a new function that returns a value: torch's compiler tells functions apart."""
    return lambda *args, **options: value


def _stand_ins() -> dict[str, Any]:
    """Return what stands for the functions of `torch.cuda`: those of `torch.cpu`, or nothing."""
    cpu: Any = torch.cpu
    names = "Event", "Stream", "stream", "StreamContext", "current_stream"
    stand_ins: dict[str, Any] = {name: getattr(cpu, name) for name in names}
    silent = (
        *("set_device", "synchronize", "empty_cache", "init", "manual_seed", "manual_seed_all"),
        *("reset_peak_memory_stats", "set_per_process_memory_fraction", "ipc_collect"),
    )
    stand_ins |= {name: _returning(None) for name in silent}
    numbers = "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"
    stand_ins |= {name: _returning(0) for name in ("current_device", *numbers)}
    stand_ins["device_count"] = _returning(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    stand_ins["device"] = lambda *args: nullcontext()
    stand_ins["get_device_capability"] = _returning(_CAPABILITY)
    stand_ins["get_device_name"] = _returning("GPU of a recording")
    stand_ins["is_bf16_supported"] = _returning(True)
    return stand_ins


@contextmanager
def patched() -> Iterator[None]:
    """Take the device of the recording for a GPU inside the `with` block."""
    mesh: Any = DeviceMesh
    set_default = torch.set_default_device
    with ExitStack() as stack:
        for name, stand_in in _stand_ins().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stand_in, create=True))
        for kind in (torch.autocast, torch.amp.GradScaler, mesh):
            stack.enter_context(mock.patch.object(kind, "__init__", _named(kind.__init__)))
        flat = FullyShardedDataParallel
        stack.enter_context(mock.patch.object(flat, "__init__", _placed(flat.__init__)))
        moving = mock.patch.object(
            torch, "set_default_device", lambda device: set_default(_moved(device))
        )
        stack.enter_context(moving)
        stack.enter_context(_Devices())
        yield
