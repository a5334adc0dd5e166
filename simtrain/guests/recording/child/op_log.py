"""The log of a step: each op with its tensors, its stream, what it waits for, and its memory."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._autograd import _get_sequence_nr
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode

from simtrain.guests.recording.child.known_values import KnownValues
from simtrain.guests.recording.child.problems import Unrecordable
from simtrain.guests.recording.child.streams import Streams
from simtrain.guests.recording.child.tensors import check_product, texts_of


class Modules:
    """The modules that run now, and those of autograd's nodes.

    A node of the backward pass has the sequence number of the forward op that it belongs to.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._running: list[str] = []
        self._of_sequence: dict[int, str] = {}
        self._latest = ""

    def name(self, model: torch.nn.Module) -> None:
        """Name the modules of a model as its parameters are named."""
        self.names = {id(each): name for name, each in model.named_modules()}

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def saw_op(self) -> None:
        """Remember the module of the node that autograd has made for an op."""
        if self._running:
            number = _get_sequence_nr() - 1
            # Ops without a node have the number of the node before.
            self._of_sequence.setdefault(number, self._running[-1])

    def current(self) -> str:
        """Return the name of the module that an op belongs to."""
        if self._running:
            self._latest = self._running[-1]
        else:
            node = torch._C._current_autograd_node()
            if node is not None:
                # Hooks of gradients run within the nodes before them.
                self._latest = self._of_sequence.get(node._sequence_nr(), self._latest)
            else:
                self._latest = ""
        return self._latest

    def forget(self) -> None:
        self._latest = ""

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Keep track of the modules that run inside the `with` block."""

        def enter(module: torch.nn.Module, args: Any) -> None:
            self._running.append(self.names.get(id(module), ""))

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            if self._running:
                self._running.pop()

        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}
_SYNC = {op for op in sync_ops if op.namespace == "_c10d_functional"}
_ALLOCATES = {
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.new_empty",
    "aten.new_empty_strided",
}
"""Ops that no kernel runs."""
_OVERWRITES = {
    torch.ops.aten.copy_.default,
    torch.ops.aten._foreach_copy_.default,
    torch.ops.aten.zero_.default,
    torch.ops.aten.fill_.Scalar,
}
"""Ops that write their first argument without reading it."""
_METHODS = (
    *("allreduce", "allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base"),
    *("alltoall", "alltoall_base", "broadcast", "reduce", "gather", "scatter", "send", "recv"),
    *("allreduce_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter_tensor_coalesced", "barrier"),
)
"""Methods of process groups that return the work of a collective."""
_COPIES_IN = torch.ops.fsdp.all_gather_copy_in.default
"""fully_shard's copy into its buffer, which its schema does not say: it returns views of it."""
_SILENT = {torch.ops.aten.detach.default, torch.ops.aten._unsafe_view.default}
"""Ops that are views, although their schemas do not say so."""
_DEVICE = torch.ops.prim.device.default
_SCALARS = bool, int, float, str
_PLACES = {"index", "start", "end", "step", "storage_offset"}
"""Options that differ between the steps of a loop whose ops are otherwise equal."""
_MOST_OPS = 400_000


@dataclass(slots=True)
class LoggedOp:
    """An op of a step.

    Args:
        op: its name, such as "aten.mm".
        phase: "forward", "backward" or "optimizer".
        module: name of the module that it belongs to.
        reads, writes: its tensors.
        again: it is recomputed in the backward pass.
        options: scalars among its arguments, by name.
        stream: number of its stream; 0 computes.
        group: ranks of its collective, if it is one.
        waits: ops on other streams that it is the first to wait for.
        makes_bytes, frees_bytes: storages that it allocates, and that are freed until the next op.
        gradient_bytes, freed_gradient_bytes: how much of these are gradients of parameters.
    """

    op: str
    phase: str
    module: str = ""
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    again: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    stream: int = 0
    group: tuple[int, ...] | None = None
    waits: list[int] = field(default_factory=list)
    makes_bytes: int = 0
    frees_bytes: int = 0
    gradient_bytes: int = 0
    freed_gradient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Signature:
    """What the schema of an op says of it.

    Args:
        is_view: its results share the storage of its arguments, and it changes none.
        waits: it waits for a collective.
        writes: it changes arguments.
        overwrites: names of arguments that it writes without reading them.
    """

    is_view: bool
    waits: bool
    writes: bool
    overwrites: frozenset[str]

    @classmethod
    def of(cls, func: Any) -> _Signature:
        """Read the schema of an op."""
        arguments = func._schema.arguments
        overwritten = (
            argument.name
            for argument in arguments
            if argument.is_write
            and (argument.is_out or argument.name == "out" or func in _OVERWRITES)
        )
        is_silent = func.namespace == "prim" or func in _SILENT
        return cls(
            bool(func.is_view) or is_silent,
            func in _SYNC,
            any(argument.is_write for argument in arguments),
            frozenset(overwritten),
        )


class OpLog(TorchDispatchMode):
    """Logs every op that a GPU would run, once `phase` is set, and tracks all storages before."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, streams: Streams, modules: Modules) -> None:
        super().__init__()
        self.streams, self.modules = streams, modules
        self.ops: list[LoggedOp] = []
        self.phase: str | None = None
        self.updates = False
        """Whether the optimizer runs."""
        self.live: dict[int, int] = {}
        """Bytes of each living storage."""
        self.held_bytes = 0
        self.gradients: set[int] = set()
        """Storages with gradients of parameters."""
        self.values = KnownValues()
        self.num_ops = 0
        self._remarks: dict[str, None] = {}
        self._made_by: dict[int, int] = {}
        self._signatures: dict[Any, _Signature] = {}
        self.group_streams: dict[tuple[int, ...], int] = {}
        self._before = LoggedOp("", "")  # the bytes of what happens before the first op

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not _PLAIN.issuperset(types):
            return NotImplemented  # its ops on plain tensors follow
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # which torch asks for at every op
        kwargs = kwargs or {}
        if func.namespace == "profiler":  # it marks a range, and has no tensors
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs)
        signature = self._signature(func)
        if signature.is_view:  # it makes no storage and runs no kernel
            return func(*args, **kwargs)
        read = [*_tensors((*args, *kwargs.values()))]
        if read and not any(isinstance(x, FakeTensor) for x in read):
            with unset_fake_temporarily():  # numbers of ranks, which meshes of devices look up
                return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and self.updates:
            # The number of the step, of which optimizers compute powers.
            return 1.0 if args[0].dtype.is_floating_point else 1
        if func is torch.ops.aten._local_scalar_dense.default:
            number = self.values.scalar(args[0])
            return func(*args, **kwargs) if number is None else number
        if signature.waits:  # it returns its argument; that of fake tensors makes another one
            self._wait_for(read)
            return args[0]
        self._count()
        before = {*map(_key, read)}
        result = self.values.run(func, args, kwargs, read, signature.writes)
        if func is _COPIES_IN and self.phase is not None:
            self._log(func, args, kwargs, args[0], [result[0]])
        new = {key: x for x in _tensors((result,)) if (key := _key(x)) not in before}
        if self.phase is not None and (new or signature.writes or func in collective_ops):
            named = [*_arguments(func, args, kwargs)]
            read = [
                x
                for argument, value in named
                if argument.name not in signature.overwrites
                for x in _tensors((value,))
            ]
            mutated = [
                x for argument, value in named if argument.is_write for x in _tensors((value,))
            ]
            if new or mutated or func in collective_ops:
                self._log(func, args, kwargs, read, [*mutated, *new.values()])
        elif new:
            self.modules.saw_op()
        for x in new.values():
            self._allocate(x.untyped_storage())
        return result

    def _count(self) -> None:
        self.num_ops += 1
        if self.num_ops > _MOST_OPS:
            why = "it takes minutes; loops over the tokens of a sequence run as many ops"
            fix = "take fewer tokens or layers"
            raise Unrecordable(f"a step of more than {_MOST_OPS:,} ops", why, fix)

    def remark(self, text: str) -> None:
        """Say what the recording assumes or leaves out, once."""
        self._remarks[text] = None

    @property
    def remarks(self) -> tuple[str, ...]:
        return *self.values.remarks(), *self._remarks

    def _signature(self, func: Any) -> _Signature:
        """Return what the schema of an op says of it; each is read once."""
        signature = self._signatures.get(func)
        if signature is None:
            signature = self._signatures[func] = _Signature.of(func)
        return signature

    def _log(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
    ) -> None:
        assert self.phase is not None, "only ops of passes are logged"
        self.modules.saw_op()
        name = func._schema.name.replace("::", ".", 1)
        stream, number = self.streams.current, len(self.ops)
        op = LoggedOp(name, self.phase, self.modules.current())
        op.again = self.phase == "backward" and self.modules.is_running
        op.options = {
            schema.name: value
            for schema, value in _arguments(func, args, kwargs)
            if type(value) in _SCALARS
            and schema.name not in _PLACES
            and not (isinstance(value, float) and not math.isfinite(value))
        }
        check_product(name, transposed=bool(op.options.pop("transposed", False)))
        op.reads, op.writes = texts_of(read), texts_of(written)
        if func in collective_ops:
            group = CollectiveOp.get_process_group(func, args)
            op.group = tuple(dist.get_process_group_ranks(group))
            op.options = {name: op.options[name] for name in ("reduce_op",) if name in op.options}
            if _is_asynchronous(func, args, kwargs):
                stream = self._stream_of(op.group)
                self.streams.wait(stream, self.streams.last.get(self.streams.current))
            for x in written:
                self._made_by[_key(x)] = number
        op.stream = stream
        if name not in _ALLOCATES:  # no kernel waits, and none is waited for
            op.waits = self.streams.issue(stream, number)
        self._append(op)

    def launch(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Log a kernel that is no op of torch."""
        for x in tensors:
            self.values.forget(_key(x))
        if self.phase is None:
            return
        stream = self.streams.current
        op = LoggedOp(f"triton.{name}", self.phase, self.modules.current(), stream=stream)
        op.again = self.phase == "backward" and self.modules.is_running
        op.reads, op.waits = texts_of(tensors), self.streams.issue(stream, len(self.ops))
        self._append(op)

    def _append(self, op: LoggedOp) -> None:
        if not self.ops:
            op.makes_bytes, op.frees_bytes = self._before.makes_bytes, self._before.frees_bytes
            op.freed_gradient_bytes = self._before.freed_gradient_bytes
        self.ops.append(op)

    def _stream_of(self, group: tuple[int, ...]) -> int:
        """Return the stream of a group's asynchronous collectives."""
        if group not in self.group_streams:
            self.group_streams[group] = self.streams.new()
        return self.group_streams[group]

    def _wait_for(self, tensors: Sequence[torch.Tensor]) -> None:
        for x in tensors:
            self.streams.wait(self.streams.current, self._made_by.get(_key(x)))

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.live:
            return
        self._change(key, storage.nbytes())
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        if key in self.live:
            self._change(key, 0)
            del self.live[key]
            self.gradients.discard(key)
            self._made_by.pop(key, None)

    def _change(self, key: int, num_bytes: int) -> None:
        """Set the bytes of a storage, and count the difference with the latest op."""
        growth = num_bytes - self.live.get(key, 0)
        self.live[key] = num_bytes
        self.held_bytes += growth
        if self.phase is not None:
            op, number = self.ops[-1] if self.ops else self._before, max(0, len(self.ops) - 1)
            if growth > 0:
                op.makes_bytes += growth
                self._made_by[key] = number
            elif growth < 0:
                op.frees_bytes -= growth
                op.freed_gradient_bytes -= growth * (key in self.gradients)

    def resized(self) -> Callable[..., Any]:
        """Return how to resize a storage, as fully_shard does, so that its bytes are counted."""
        resize: Callable[..., Any] = torch.UntypedStorage.resize_

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            """Resize a storage, and count the difference."""
            result = resize(storage, size)
            if storage._cdata in self.live:
                self._change(storage._cdata, size)
            self.values.forget(storage._cdata)
            return result

        return counted

    def waited_methods(self, group: Any) -> dict[str, Callable[..., Any]]:
        """Return the methods of process groups, whose work says when a program waits for it."""
        names = (name for name in _METHODS if hasattr(group, name))
        return {name: self._returning_work(getattr(group, name)) for name in names}

    def _returning_work(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            """Call the method."""
            number = len(self.ops)
            work = method(*args, **kwargs)
            if self.phase is None or len(self.ops) == number:
                return work
            return _AwaitedWork(work, len(self.ops) - 1, self.streams)

        return call

    def begin(self, phase: str) -> None:
        """Begin a pass. Its ops wait for none of the pass before."""
        self.phase, self.num_ops = phase, 0
        self.streams.forget()
        self.modules.forget()

    def mark_gradients(self, gradients: Sequence[torch.Tensor]) -> None:
        """Mark the ops that have made the gradients of parameters."""
        keys = {*map(_key, gradients)} & self.live.keys() - self.gradients
        self.gradients |= keys
        for key in keys:
            if key in self._made_by:
                op = self.ops[self._made_by[key]]
                op.gradient_bytes += self.live[key]


class _AwaitedWork:
    """The work of a collective, which tells the streams when a program waits for it."""

    def __init__(self, work: Any, op: int, streams: Streams) -> None:
        self._work, self._op, self._streams = work, op, streams

    def wait(self, *args: Any) -> Any:
        self._streams.wait(self._streams.current, self._op)
        return self._work.wait(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _key(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    for place, schema in enumerate(func._schema.arguments):
        if place < len(args):
            yield schema, args[place]
        elif schema.name in kwargs:
            yield schema, kwargs[schema.name]


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _is_asynchronous(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a collective runs on its group's own stream instead of the current one.

    Functional collectives do. Others run on the stream of the caller, unless this wants to wait
    for them itself (`async_op`), since torch 2.8.
    """
    if func.namespace != "c10d":
        return True
    # Calls leave out arguments with their default values.
    named = {each.name: each.default_value for each in func._schema.arguments}
    named |= {schema.name: value for schema, value in _arguments(func, args, kwargs)}
    return bool(named.get("async_op", False))
