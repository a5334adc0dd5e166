"""Run the stages of a pipeline one by one on fake tensors, and log the passes of each.

A function builds one stage at a time. Its loss is that of the whole model: what it calls stands for
the model, and runs the stage on what the stage before has sent. In a stage before the last one, the
call ends the loss. The passes are those of torch's pipelining (`stage.py`): with fully_shard,
backward passes neither reduce gradients nor free parameters, and `perform_reduce_grad` follows the
last one.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed.tensor.debug
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from simtrain.recording.child.data_parallel import Replicas
from simtrain.recording.child.modules import Modules
from simtrain.recording.child.op_log import OpLog
from simtrain.recording.child.problems import WrongStage
from simtrain.recording.child.step import (
    Step,
    as_rank,
    batch_sizes,
    checked_program,
    step_of,
)
from simtrain.recording.child.streams import Streams
from simtrain.recording.child.tensors import text_of

_NAMES = "stage", "num_stages", "pp"
"""Keyword arguments that a function of stages is called with."""


@dataclass(frozen=True)
class SentTensor:
    """A tensor that crosses the boundary of two stages, without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool

    @classmethod
    def of(cls, tensor: Tensor) -> SentTensor:
        """Return what the next stage needs to know of a tensor."""
        return cls((*tensor.shape,), (*tensor.stride(),), tensor.dtype, tensor.requires_grad)

    def received(self) -> Tensor:
        """Allocate the tensor on the stage that receives it."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        return tensor.requires_grad_(self.has_gradient)

    def gradient(self) -> Tensor:
        """Allocate its gradient on the stage that has sent it."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)

    def text(self) -> str:
        """Write it as recordings do: bf16[4,1024,768]."""
        return text_of(torch.empty_strided(self.shape, self.stride, dtype=self.dtype))


@dataclass(frozen=True)
class LoggedStage:
    """The passes of one virtual stage.

    Args:
        step: its ops, with the name of the pass as the phase of each.
        rank: the global number of its first rank.
        receives, sends, returns: tensors of a microbatch that it receives from the stage before,
            sends to the next one, and sends back as gradients.
    """

    step: Step
    rank: int
    receives: list[str]
    sends: list[str]
    returns: list[str]


def record_stages(
    load: Callable[[], Callable[..., Any]],
    arguments: Mapping[str, Any],
    gpus: int,
    pp: int,
    chunks: int,
    microbatches: int,
) -> Iterator[LoggedStage]:
    """Log the passes of each virtual stage, first to last.

    Args:
        load: returns the program's function, in a process group: what it imports may look for one.
            The function is called with `stage` and `num_stages`, and `pp` if it takes it.
        arguments: its other keyword arguments.
        gpus: ranks of all stages; those of a stage follow one another.
        pp, chunks: stages, and virtual stages of each.
        microbatches: of the iteration.

    Raises:
        WrongStage: the function builds no stages.
    """
    function: Callable[..., Any] | None = None
    received: list[SentTensor] = []
    sizes: tuple[int, int] | None = None
    for number in range(num_stages := pp * chunks):
        rank = number % pp * (gpus // pp)
        log = OpLog(Streams(), Modules())
        with as_rank(log, gpus, rank):
            if function is None:
                _check_arguments(function := load())
            values = {"stage": number, "num_stages": num_stages, "pp": pp}
            taken = {name: value for name, value in values.items() if _takes(function, name)}
            program = checked_program(function(**arguments, **taken))
            ends = number == 0, number == num_stages - 1
            stage = _Stage(*program, log, received, *ends)
            held_bytes = stage.run()
            # Only the batch of the first stage is cut into microbatches by its shape.
            sizes = sizes or batch_sizes(stage.batch)
            step = step_of(
                log, stage.model, stage.optimizer, gpus, (0, held_bytes, *sizes, microbatches)
            )
            texts = [each.text() for each in received]
            back = [each.text() for each in received if each.has_gradient]
            sends = [each.text() for each in stage.sends]
            yield LoggedStage(step, rank, texts, sends, back)
            received = stage.sends
        del stage, program
        gc.collect()  # the next stage must not find tensors of this one
        _forget_meshes()


def _forget_meshes() -> None:
    """Clear what DTensor remembers: meshes of two stages are equal there, and their groups not."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("torch.distributed.tensor"):
            for value in [*vars(module).values()]:
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    clear = getattr(torch.distributed.tensor.debug, "_clear_sharding_prop_cache", None)
    if clear is not None:
        clear()


def _check_arguments(function: Callable[..., Any]) -> None:
    """Refuse functions that do not say which stage they build."""
    missing = [name for name in _NAMES[:2] if not _takes(function, name)]
    if missing:
        raise WrongStage(
            f"with --pp, the function is called once for each stage, and takes no {missing[0]}",
        )


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes a keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


class _Sent(BaseException):
    """Ends a loss at the call of the model; no `except Exception` of a user stops it."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class _Model:
    """Stands for the whole model in the loss of a stage.

    Args:
        stage: runs its part of the model.
        received: tensors of the stage before, in place of the arguments of the call.
    """

    def __init__(self, stage: _Stage, received: Sequence[Tensor]) -> None:
        self._stage, self._received = stage, received

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage; torch's pipelining too gives keyword arguments to all stages."""
        stage = self._stage
        output = stage.model(*(args if stage.is_first else self._received), **kwargs)
        if stage.is_last:
            return output
        raise _Sent(output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage.model, name)


@dataclass
class _Stage:
    """A stage, with the tensors of the microbatches between their forward and backward passes."""

    model: torch.nn.Module
    batch: Any
    loss: Callable[..., Any]
    optimizer: Any
    log: OpLog
    received: list[SentTensor]
    is_first: bool
    is_last: bool
    sends: list[SentTensor] = field(default_factory=list)
    waiting: list[tuple[list[Tensor], list[Tensor]]] = field(default_factory=list)
    """Inputs and outputs of each microbatch whose backward pass has not run."""

    def run(self) -> int:
        """Run two iterations, and log the passes of the second one.

        Returns the bytes that exist before its first pass.
        """
        self.log.modules.name(self.model)
        self.forward()
        self.backward()
        self.reduce()
        self.step()
        held_bytes = self.log.held_bytes
        with self.logged("first_forward", "forward"):
            self.forward()
        with self.logged("forward"):
            self.forward()
        with self.logged("first_backward", "backward"):
            self.backward()
            self.log.mark_gradients(_gradients(self.model))
        with self.logged("backward_after_backward", "backward"):
            self.backward()
        with self.logged("forward_after_backward", "forward"):
            self.forward()
        with self.logged("backward"):
            self.backward()
        if isinstance(self.model, Replicas):
            self.forward()
            with self.logged("last_backward", "backward"):
                self.backward(reduces=True)
        with self.logged("reduction", "backward"):
            if self.reduce():
                gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
                self.log.mark_gradients([getattr(x, "_local_tensor", x) for x in gradients])
                del gradients
        with self.logged("optimizer"):
            self.step()
        return held_bytes

    @contextmanager
    def logged(self, name: str, kind: str | None = None) -> Iterator[None]:
        """Log the ops inside the `with` block as a pass; `kind` is what the recorder calls it."""
        ops, first = self.log.ops, len(self.log.ops)
        before = (ops[-1].makes_bytes, ops[-1].frees_bytes) if ops else (0, 0)
        self.log.begin(kind or name)
        yield
        self.log.phase = None
        for op in ops[first:]:
            op.phase = name
        if 0 < first < len(ops):
            # What is allocated and freed before the first op of the pass belongs to that op.
            last, following = ops[first - 1], ops[first]
            following.makes_bytes += last.makes_bytes - before[0]
            following.frees_bytes += last.frees_bytes - before[1]
            last.makes_bytes, last.frees_bytes = before

    def forward(self) -> None:
        """Run a forward pass, and keep what its backward pass needs."""
        inputs = [each.received() for each in self.received]
        try:
            output = self.loss(_Model(self, inputs), self.batch)
        except _Sent as sent:
            output = sent.output
        else:
            if not self.is_last:
                raise WrongStage("the loss does not call the model, which is this stage")
            if not isinstance(output, Tensor) or output.numel() != 1 or not output.requires_grad:
                raise WrongStage("the loss of the last stage is no scalar with a gradient")
        outputs = [each for each in tree_leaves(output) if isinstance(each, Tensor)]
        if not self.is_last:
            self.sends = _sent(outputs)
        self.waiting.append((inputs, outputs))

    def backward(self, *, reduces: bool = False) -> None:
        """Run the backward pass of the first microbatch that waits for it."""
        inputs, outputs = self.waiting.pop(0)
        model, context = self.model, cast(AbstractContextManager[None], nullcontext())
        if isinstance(model, FSDPModule):
            model.set_is_last_backward(False)
            model.set_reshard_after_backward(False)
            model.set_requires_gradient_sync(False)
        elif isinstance(model, Replicas) and not reduces:
            context = model.no_sync()
        outputs = [each for each in outputs if each.requires_grad]
        with context:
            gradients = None
            if not self.is_last:
                gradients = [each.gradient() for each in self.sends if each.has_gradient]
            torch.autograd.backward(outputs, gradients)
        del inputs, outputs, gradients

    def reduce(self) -> bool:
        """Reduce the gradients of all microbatches, if fully_shard has kept them."""
        model = self.model
        if not isinstance(model, FSDPModule):
            return False
        model.set_is_last_backward(True)
        model.set_reshard_after_backward(True)
        model.set_requires_gradient_sync(True)
        root: Any = fully_shard.state(model)  # type: ignore[attr-defined]
        for group in _parameter_groups(root):
            group.post_backward()
        root._root_post_backward_final_callback()
        return True

    def step(self) -> None:
        """Run the optimizer."""
        if self.optimizer is None:
            self.model.zero_grad(set_to_none=True)
            return
        self.log.updates = True
        self.optimizer.step()
        self.log.updates = False
        self.optimizer.zero_grad(set_to_none=True)


def _sent(outputs: Sequence[Tensor]) -> list[SentTensor]:
    """Return what the next stage receives of a stage's outputs."""
    if not any(each.requires_grad for each in outputs):
        raise WrongStage("a stage before the last one returns no tensor with a gradient")
    if any(isinstance(each, DTensor) for each in outputs):
        raise WrongStage("a stage returns a DTensor, which cannot be sent: return its local tensor")
    return [SentTensor.of(each) for each in outputs]


def _parameter_groups(root: Any) -> Iterator[Any]:
    """Yield the groups of parameters that fully_shard gathers together."""
    for state in root._state_ctx.all_states:
        groups = getattr(state, "_fsdp_param_groups", None)
        yield from groups if groups is not None else filter(None, [state._fsdp_param_group])


def _gradients(model: torch.nn.Module) -> list[Tensor]:
    """Return the gradients of parameters, with those that fully_shard has not reduced yet."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    if isinstance(model, FSDPModule):
        for group in _parameter_groups(fully_shard.state(model)):  # type: ignore[attr-defined]
            for each in group.fsdp_params:
                gradients.append(each.unsharded_accumulated_grad)
                gradients.append(getattr(each, "_unsharded_param", each.sharded_param).grad)
    local = (getattr(each, "_local_tensor", each) for each in gradients)
    return [each for each in local if each is not None]
