"""Run a training step of a program on fake tensors, and log it.

The program runs two steps, and the second is logged: the first makes the states of the optimizer,
and whatever else is made once.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from simtrain.guests.recording.child import streams
from simtrain.guests.recording.child import torch_internals as private
from simtrain.guests.recording.child.op_log import LoggedOp, Modules, OpLog
from simtrain.guests.recording.child.patches import patched
from simtrain.guests.recording.child.problems import WrongProgram
from simtrain.guests.recording.program import ProgramStates


@dataclass(frozen=True)
class Step:
    """A logged step: its ops in order of issue, and fields of the recording (`RecordedProgram`)."""

    ops: list[LoggedOp]
    fields: dict[str, Any]


def record(
    function: Callable[..., Any], arguments: Mapping[str, Any], gpus: int, microbatches: int = 1
) -> Step:
    """Call a function of a program, and log the second step of what it returns.

    Of several microbatches, the last one is logged: it adds its gradients to those of the others.

    Raises:
        WrongProgram: it returns no model, batch and loss.
    """
    log = OpLog(streams.Streams(), modules := Modules())
    with as_rank(log, gpus):
        model, batch, loss, optimizer = checked_program(function(**arguments))
        modules.name(model)
        _run(log, model, batch, loss, optimizer, is_logged=False)
        for _ in range(min(microbatches - 1, _ADDING)):
            _loss(model, batch, loss).backward()
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        gradients_bytes, held_bytes = bytes_of(gradients), log.held_bytes
        del gradients
        with _calls_of(model) as calls:
            _run(log, model, batch, loss, optimizer, is_logged=True)
        log.phase = None
        states = _states_of(model, optimizer, gradients_bytes, held_bytes)
        sequences, tokens = _sizes_of(calls, batch)
        parameters = [*model.parameters()]
        fields = {
            "sequences": sequences,
            "tokens": tokens,
            "microbatches": microbatches,
            "tensor": _tensor_ranks(parameters, gpus),
            "num_parameters": sum(each.numel() for each in parameters),
            "num_trained": sum(each.numel() for each in parameters if each.requires_grad),
            "states": states,
            "remarks": [*log.remarks],
            "group_streams": sorted(log.group_streams.values()),
        }
        return Step(log.ops, fields)


def _states_of(
    model: torch.nn.Module, optimizer: Any, gradients_bytes: int, held_bytes: int
) -> ProgramStates:
    """Return what a rank holds before a step, of `held_bytes` in all."""
    # torchtitan's optimizers are containers of others.
    optimizers = [optimizer, *getattr(optimizer, "optimizers", ())] if optimizer else []
    parameters_bytes = bytes_of([*model.parameters()])
    optimizer_bytes = bytes_of(private.tree_leaves([dict(each.state) for each in optimizers]))
    return ProgramStates(
        parameters_bytes=parameters_bytes,
        optimizer_bytes=optimizer_bytes,
        other_bytes=max(0, held_bytes - parameters_bytes - optimizer_bytes - gradients_bytes),
        gradients_bytes=gradients_bytes,
    )


@contextmanager
def as_rank(log: OpLog, gpus: int) -> Iterator[None]:
    """Log what the first rank of a fake process group does inside the `with` block."""
    fake_mode = private.FakeTensorMode(allow_non_fake_inputs=True)
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with _process_group(gpus), patched(log), one_thread, fake_mode, log, log.modules.tracked():
        yield


def checked_program(result: Any) -> tuple[torch.nn.Module, Any, Callable[..., Any], Any]:
    """Check what the function of a program returns."""
    if not isinstance(result, tuple) or len(result) not in (3, 4):
        kind = type(result).__name__
        raise WrongProgram(f"the function returns a {kind}, not (model, batch, loss, optimizer)")
    model, batch, loss, *others = result
    if not isinstance(model, torch.nn.Module):
        raise WrongProgram(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if not callable(loss):
        raise WrongProgram(f"the loss is a {type(loss).__name__}, not a function")
    optimizer = others[0] if others else None
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise WrongProgram(f"the optimizer is a {kind}, not a torch.optim.Optimizer")
    return model, batch, loss, optimizer


def _run(
    log: OpLog,
    model: torch.nn.Module,
    batch: Any,
    loss: Callable[..., Any],
    optimizer: Any,
    *,
    is_logged: bool,
) -> None:
    """Run a step: forward, backward, optimizer."""
    if is_logged:
        log.begin("forward")
    value = _loss(model, batch, loss)
    if is_logged:
        log.mark_gradients(_gradients_of(model))  # of microbatches that the loss has run itself
        log.begin("backward")
    value.backward()
    del value
    if is_logged:
        log.mark_gradients(_gradients_of(model))
        log.begin("optimizer")
    if optimizer is not None:
        log.updates = True
        optimizer.step()
        log.updates = False
        optimizer.zero_grad(set_to_none=True)
    else:
        model.zero_grad(set_to_none=True)


def _gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the gradients of parameters, and those that fully_shard has not reduced yet."""
    gradients = [each.grad for each in model.parameters() if each.is_leaf]
    for module in (each for each in model.modules() if isinstance(each, FSDPModule)):
        state = private.get_fsdp_state(module)()
        groups = private.fsdp_param_groups(state) or [private.fsdp_param_group(state)]
        for parameter in (x for each in groups if each is not None for x in each.fsdp_params):
            gradients.append(private.unsharded_accumulated_grad(parameter))
            whole = private.unsharded_param(parameter)
            gradients.append(None if whole is None else whole.grad)
    return [_local(each) for each in gradients if each is not None]


def _loss(model: torch.nn.Module, batch: Any, loss: Callable[..., Any]) -> torch.Tensor:
    """Return the loss of a batch, which must be a scalar with a gradient."""
    value = loss(model, batch)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise WrongProgram("the loss is no scalar tensor")
    if not value.requires_grad:
        raise WrongProgram("the loss needs no gradient: no parameter is trained")
    return value


def _local(tensor: torch.Tensor) -> torch.Tensor:
    part: torch.Tensor = private.local_tensor(tensor) if isinstance(tensor, DTensor) else tensor
    return part


def bytes_of(tensors: list[Any]) -> int:
    """Return the bytes of the different storages of tensors."""
    local = (_local(each) for each in tensors if isinstance(each, torch.Tensor))
    storages = [each.untyped_storage() for each in local]
    return sum({private.cdata(storage): storage.nbytes() for storage in storages}.values())


def _tensor_ranks(parameters: list[torch.nn.Parameter], gpus: int) -> int:
    """Return the number of ranks that share a batch, from the names of the mesh's axes."""
    ranks = 1
    for parameter in parameters:
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is None:
            continue
        sizes = zip(mesh.mesh_dim_names or (), mesh.shape, strict=False)
        ranks = max(ranks, math.prod(size for name, size in sizes if name in _TENSOR_AXES))
    return ranks if gpus % ranks == 0 else 1


_ADDING = 2
"""Microbatches before the logged one: from the second one on, gradients are added to others."""
_TENSOR_AXES = "tp", "cp", "tensor", "model", "tensor_parallel", "context_parallel"
"""Names of mesh axes whose ranks work on the same sequences."""


@contextmanager
def _calls_of(model: torch.nn.Module) -> Iterator[list[tuple[int, int]]]:
    """Yield a list that gets the sizes of each batch that a loss runs the model on."""
    sizes: list[tuple[int, int]] = []
    seen: list[Any] = []

    def saw(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        leaves = private.tree_leaves((args, kwargs))
        first = next((x for x in leaves if isinstance(x, torch.Tensor)), None)
        if first is not None and not any(each() is first for each in seen):
            seen.append(weakref.ref(first))
            sizes.append(batch_sizes((args, kwargs)))

    handle = model.register_forward_pre_hook(saw, with_kwargs=True)
    try:
        yield sizes
    finally:
        handle.remove()


def _sizes_of(calls: list[tuple[int, int]], batch: Any) -> tuple[int, int]:
    """Return sequences and tokens of all microbatches that a loss runs; those of a single batch."""
    if len(calls) < 2:
        return batch_sizes(batch)
    total = sum(sequences * tokens for sequences, tokens in calls)
    longest = max(tokens for _, tokens in calls)
    return (total // longest, longest) if total % longest == 0 else (1, total)


def batch_sizes(batch: Any) -> tuple[int, int]:
    """Return sequences and tokens of the batch: the shape of its first tensor of integers."""
    tensors = [x for x in private.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()]
    integers = [x for x in tensors if not x.dtype.is_floating_point and x.dim() == 2]
    if integers:
        sequences, tokens = integers[0].shape
        return int(sequences), int(tokens)
    return (int(tensors[0].shape[0]), 1) if tensors else (1, 1)


@contextmanager
def _process_group(gpus: int) -> Iterator[None]:
    of_node = min(8, gpus)
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(gpus), "MASTER_PORT": "29500"}
    variables |= {"LOCAL_WORLD_SIZE": str(of_node), "MASTER_ADDR": "127.0.0.1"}
    with mock.patch.dict(os.environ, variables):
        dist.init_process_group("fake", store=private.FakeStore(), rank=0, world_size=gpus)
        try:
            yield
        finally:
            dist.destroy_process_group()
