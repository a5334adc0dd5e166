"""What is replaced in torch while a program runs: one table, with the reasons.

Programs run unmodified, on one device, "cpu", whose streams and kernels stand for a GPU's. Names
that torch does not document may be gone in another release: `torch_internals` lists these.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.optim
from torch import Tensor
from torch.distributed import device_mesh, fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from simtrain.guests.recording.child import data_parallel, kernels
from simtrain.guests.recording.child import torch_internals as private
from simtrain.guests.recording.child.op_log import OpLog
from simtrain.guests.recording.child.problems import Unrecordable
from simtrain.guests.recording.child.streams import stand_ins
from simtrain.guests.recording.program import COMPILED

_CUDA, _DEVICE = "cuda", "cpu"
_CAPABILITY = 9, 0
"""What programs that choose kernels by the GPU are told: that it is as new as Hopper."""


@dataclass(frozen=True)
class Patch:
    """Attributes that are replaced while a program runs.

    Args:
        owner: a module or a class of torch.
        values: what stands for its attributes, by name.
        why: the reason.
    """

    owner: Any
    values: Mapping[str, Any]
    why: str


def patches(log: OpLog) -> Iterator[Patch]:
    """Yield what is replaced while a log records a program."""
    streams = stand_ins(log.streams)
    yield Patch(torch.cpu, streams, "CPUs have no streams; these know what waits for what")
    current = {"current_stream": streams["current_stream"]}
    yield Patch(torch.accelerator, current, "fully_shard asks for it above frozen modules")
    yield Patch(torch.cuda, _of_cuda(streams), "programs name CUDA, and get the recording's device")
    for kind in (torch.autocast, torch.amp.GradScaler):
        yield Patch(kind, {"__init__": _named(kind.__init__)}, "their device may be CUDA")
    set_default = torch.set_default_device
    yield Patch(
        torch,
        {
            "set_default_device": lambda device: set_default(_moved(device)),
            "compile": _eager(log),
        },
        "a recording has one device, and the ops of the eager program",
    )
    yield Patch(
        torch.nn.Module,
        {"compile": lambda model, *args, **options: log.remark(COMPILED)},
        "as torch.compile",
    )
    scripts = {"script": lambda function=None, *args, **options: function}
    yield Patch(torch.jit, scripts, "it compiles functions, and knows torch's own names alone")
    yield Patch(
        DeviceMesh,
        _outside_fake_mode(),
        "meshes look up values in their tensors, and may be of CUDA devices",
    )
    make_mesh = device_mesh.init_device_mesh
    for owner in _importers(make_mesh, "init_device_mesh"):
        yield Patch(owner, {"init_device_mesh": _outside(make_mesh)}, "it makes a mesh")
    for owner in (dist, dist.distributed_c10d):
        nothing = {"init_process_group": lambda *args, **options: None}
        yield Patch(owner, nothing, "there is a process group already, with fake ranks")
    waited = log.waited_methods(dist.ProcessGroup)
    yield Patch(dist.ProcessGroup, waited, "the log sees what waits for a collective")
    for owner in (torch.nn.parallel, torch.nn.parallel.distributed):
        replicas = {"DistributedDataParallel": data_parallel.Replicas}
        yield Patch(owner, replicas, "its reducer in C++ takes no fake tensors")
    yield Patch(
        F,
        {
            "scaled_dot_product_attention": kernels.fused_attention,
            "dropout": kernels.dropout_with_mask(F.dropout),
            "rms_norm": kernels.fused_rms_norm(F.rms_norm),
        },
        "GPUs run each as one kernel, CPUs as several",
    )
    yield Patch(
        flex_attention,
        {"flex_attention": functools.partial(kernels.flexible_attention, log.remark)},
        "it is compiled to one kernel, and CPUs have no backward pass of it",
    )
    truncated = {"trunc_normal_": kernels.truncated_normal}
    yield Patch(torch.nn.init, truncated, "torch's function checks values")
    select = kernels.selecting(checkpoint.create_selective_checkpoint_contexts)
    selects = {"create_selective_checkpoint_contexts": select}
    yield Patch(checkpoint, selects, "policies that keep attention keep the op that stands for it")
    address = {"data_ptr": _address_of_tensor(torch.Tensor.data_ptr)}
    why = "Accelerate tells storages apart by address; fake ones have none"
    yield Patch(torch.Tensor, address, why)
    storage = torch.UntypedStorage
    resize = {"data_ptr": _address_of_storage(storage.data_ptr), "resize_": log.resized()}
    yield Patch(storage, resize, why + "; fully_shard frees and allocates by resizing")
    yield from _of_private_places()
    yield from _of_triton(log)
    yield from _refusals()


@contextmanager
def patched(log: OpLog) -> Iterator[None]:
    """Replace all of the table inside the `with` block."""
    with ExitStack() as stack:
        for patch in [*patches(log)]:
            for name, value in patch.values.items():
                stack.enter_context(mock.patch.object(patch.owner, name, value, create=True))
        stack.enter_context(_Devices())
        yield


def _importers(value: Any, name: str) -> list[Any]:
    modules = [*sys.modules.values()]
    return [each for each in modules if value is not None and vars(each).get(name) is value]


def _of_private_places() -> Iterator[Patch]:
    for place in (place for place in private.PLACES if place.how.startswith("replace")):
        for name in filter(place.has, place.names):
            owner = pkgutil.resolve_name(place.owner)
            everywhere = place.how == "replace everywhere"
            for each in _importers(vars(owner)[name], name) if everywhere else [owner]:
                yield Patch(each, {name: place.stand_in}, place.why)


# CUDA


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == _CUDA
    return isinstance(value, str) and value.split(":")[0] == _CUDA


def _moved(value: Any) -> Any:
    return torch.device(_DEVICE) if _is_cuda(value) else value


class _Devices(TorchFunctionMode):
    """Calls torch's functions with the device of the recording in place of a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:  # a GPU until it is used
            return func(*args, **kwargs)
        if any(map(_is_cuda, args)) or _is_cuda(kwargs.get("device")):
            args, kwargs = private.tree_map(_moved, (args, kwargs))
        return func(*args, **kwargs)


def _named(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose first argument, a type of device, may be that of GPUs."""

    @functools.wraps(method)
    def call(self: Any, device_type: str, *args: Any, **options: Any) -> Any:
        return method(self, _DEVICE if _is_cuda(device_type) else device_type, *args, **options)

    return call


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *args, **options: value


def _of_cuda(streams: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands for the functions of `torch.cuda`. `is_available()` stays false.

    So a program that chooses its device needs none of this, and packages that need CUDA's libraries
    do not look for them.
    """
    silent = (
        *("set_device", "synchronize", "empty_cache", "init", "manual_seed", "manual_seed_all"),
        *("reset_peak_memory_stats", "set_per_process_memory_fraction", "ipc_collect"),
    )
    numbers = "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"
    return {
        **streams,
        **{name: _returning(None) for name in silent},
        **{name: _returning(0) for name in ("current_device", *numbers)},
        "device_count": _returning(int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),
        "device": lambda *args: nullcontext(),
        "get_device_capability": _returning(_CAPABILITY),
        "get_device_name": _returning("GPU of a recording"),
        "is_bf16_supported": _returning(True),
    }


def _eager(log: OpLog) -> Callable[..., Any]:
    """Return what stands for `torch.compile`, and says that it was left out if it is used."""

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return compile
        if isinstance(model, torch.nn.Module):
            log.remark(COMPILED)
            return model

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            log.remark(COMPILED)
            return model(*args, **kwargs)

        return call

    return compile


def _of_triton(log: OpLog) -> Iterator[Patch]:
    """Yield what launches Triton's kernels, which need a GPU to run.

    What a kernel computes is not known, so each of its tensors counts as read once.
    """
    modules: list[Any] = []
    with suppress(ImportError):
        names = "triton.runtime.jit", "triton.runtime.autotuner"
        modules += map(importlib.import_module, names)

    def run(kernel: Any, *args: Any, **options: Any) -> None:
        values = [*args, *options.values()]
        log.launch(kernel.fn.__name__, [x for x in values if isinstance(x, Tensor)])

    def run_tuned(kernel: Any, *args: Any, **options: Any) -> Any:
        return kernel.fn.run(*args, **options)

    kinds = ("JITFunction", run), ("Autotuner", run_tuned)
    for module, (name, stand_in) in zip(modules, kinds, strict=False):
        yield Patch(getattr(module, name), {"run": stand_in}, "Triton's kernels need a GPU")


# Meshes of devices, which are made outside the fake mode


def _outside_fake_mode() -> dict[str, Any]:
    """Return the attributes of meshes that run code, without the fake mode."""
    mesh: Any = DeviceMesh
    stand_ins: dict[str, Any] = {}
    for name, value in vars(mesh).items():
        if isinstance(value, FunctionType):
            stand_ins[name] = _outside(value)
        elif isinstance(value, staticmethod | classmethod):
            stand_ins[name] = type(value)(_outside(value.__func__))
        elif isinstance(value, property) and value.fget:
            stand_ins[name] = property(_outside(value.fget), value.fset)
    stand_ins["__init__"] = _named(stand_ins["__init__"])
    return stand_ins


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs outside the fake mode."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        fake = private.unset_dispatch_mode(private.TorchDispatchModeKey.FAKE)
        try:
            return function(*args, **options)
        finally:
            if fake is not None:
                private.set_dispatch_mode(fake)

    return run


def _address_of_storage(original: Callable[[Any], int]) -> Callable[[Any], int]:
    def address(storage: Any) -> int:
        """Return the address of a storage; zero if it is empty."""
        if storage.device.type != "meta":
            return original(storage)
        return int(private.cdata(storage)) if storage.nbytes() else 0

    return address


def _address_of_tensor(original: Callable[[Tensor], int]) -> Callable[[Tensor], int]:
    def address(tensor: Tensor) -> int:
        """Return the address of a tensor's first element."""
        if not isinstance(tensor, private.FakeTensor):
            return original(tensor)
        start: int = tensor.untyped_storage().data_ptr()
        return start and start + int(tensor.storage_offset()) * tensor.element_size()

    return address


# What cannot be recorded


def _refusals() -> Iterator[Patch]:
    """Yield what ends a recording with a reason."""

    def refusing(what: str, why: str, fix: str) -> Callable[..., Any]:
        def refuse(*args: Any, **options: Any) -> Any:
            raise Unrecordable(what, why, fix)

        return refuse

    one_memory = "a recording has one memory, that of the GPU, and no host's"
    keep = "keep them on the GPU"
    offload = fsdp.CPUOffloadPolicy
    refuse = refusing("CPUOffloadPolicy", one_memory, keep)
    yield Patch(offload, {"__init__": refuse}, one_memory)
    saved = {"save_on_cpu": refusing("save_on_cpu", one_memory, keep)}
    yield Patch(torch.autograd.graph, saved, one_memory)
    flat, sharded = "FullyShardedDataParallel", "it has flat parameters, which torch replaces"
    refuse = refusing(flat, sharded, "shard the model with fully_shard")
    yield Patch(fsdp.FullyShardedDataParallel, {"__init__": refuse}, sharded)
    lengths = "the lengths of its sequences are values, which tensors of a recording lack"
    pad = "pad the sequences to one length"
    for owner, names in (
        (torch.nested, ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged")),
        (torch.nn.utils.rnn, ("pack_padded_sequence", "pack_sequence")),
    ):
        yield Patch(owner, {name: refusing(name, lengths, pad) for name in names}, lengths)
    messages = "its stages exchange messages, which a single process cannot"
    fix = "record the program without a pipeline, or describe the model in a scenario"
    stages = {"__init__": refusing("PipelineStage", messages, fix)}
    with suppress(ImportError):
        pipelining = importlib.import_module("torch.distributed.pipelining")
        yield Patch(pipelining.PipelineStage, stages, messages)
