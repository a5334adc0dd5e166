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
from torch.nn.modules import module as hooks

from simtrain.guests.recording.child import torch_internals as private
from simtrain.guests.recording.child.known_values import KnownValues
from simtrain.guests.recording.child.problems import Unrecordable
from simtrain.guests.recording.child.streams import Streams
from simtrain.guests.recording.child.tensors import check_product, storage_key, texts_of


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
            number = private.get_sequence_nr() - 1
            # Ops without a node have the number of the node before.
            self._of_sequence.setdefault(number, self._running[-1])

    def current(self) -> str:
        """Return the name of the module that an op belongs to."""
        if self._running:
            self._latest = self._running[-1]
        else:
            node = private.current_autograd_node()
            if node is not None:
                # Hooks of gradients run within the nodes before them.
                self._latest = self._of_sequence.get(private.sequence_nr(node)(), self._latest)
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


_PLAIN = {torch.Tensor, torch.nn.Parameter, private.FakeTensor}
_SYNC = {op for op in private.sync_ops if op.namespace == "_c10d_functional"}
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
_COPIES_IN = torch.ops.fsdp.all_gather_copy_in.default
"""fully_shard's copy into its buffer, which its schema does not say: it returns views of it."""
_SILENT = {torch.ops.aten.detach.default, torch.ops.aten._unsafe_view.default}
"""Ops that are views, although their schemas do not say so."""
_DEVICE = torch.ops.prim.device.default
_PLACES = {"index", "start", "end", "step", "storage_offset"}
"""Options that differ between the steps of a loop whose ops are otherwise equal."""
_MOST_OPS = 400_000


@dataclass(slots=True)
class LoggedOp:
    """An op of a step: fields of `ProgramOp`, with its `phase`, and its group as ranks.

    `waits` has the numbers of the ops of other streams that it is the first to wait for.
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
    @functools.cache
    def of(cls, func: Any) -> _Signature:
        """Read the schema of an op."""
        arguments = private.schema(func).arguments
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


class OpLog(private.TorchDispatchMode):  # type: ignore[misc]
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
        if func is _DEVICE and isinstance(args[0], private.FakeTensor):
            return args[0].fake_device  # which torch asks for at every op
        kwargs = kwargs or {}
        if func.namespace == "profiler":  # it marks a range, and has no tensors
            with private.DisableTorchDispatch():
                return func(*args, **kwargs)
        signature = _Signature.of(func)
        if signature.is_view:  # it makes no storage and runs no kernel
            return func(*args, **kwargs)
        read = [*_tensors((*args, *kwargs.values()))]
        if read and not any(isinstance(x, private.FakeTensor) for x in read):
            with private.unset_fake_temporarily():  # ranks, which meshes of devices look up
                return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            if self.updates:  # the number of the step, of which optimizers compute powers
                return 1.0 if args[0].dtype.is_floating_point else 1
            number = self.values.scalar(args[0])
            return func(*args, **kwargs) if number is None else number
        if signature.waits:  # it returns its argument; that of fake tensors makes another one
            self._wait_for(read)
            return args[0]
        self._count()
        before = {*map(storage_key, read)}
        result = self.values.run(func, args, kwargs, read, signature.writes)
        if any(isinstance(x, torch.UntypedStorage) for x in args):
            private.FakeTensorMode.cache_clear()  # a key of the cache keeps the storage alive
        if func is _COPIES_IN and self.phase is not None:
            self._log(func, args, kwargs, args[0], [result[0]])
        new = {key: x for x in _tensors((result,)) if (key := storage_key(x)) not in before}
        if self.phase is not None and (new or signature.writes or func in private.collective_ops):
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
            if new or mutated or func in private.collective_ops:
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
        name = private.schema(func).name.replace("::", ".", 1)
        stream, number = self.streams.current, len(self.ops)
        op = LoggedOp(name, self.phase, self.modules.current())
        op.again = self.phase == "backward" and self.modules.is_running
        op.options = {
            schema.name: value
            for schema, value in _arguments(func, args, kwargs)
            if type(value) in (bool, int, float, str)
            and schema.name not in _PLACES
            and not (isinstance(value, float) and not math.isfinite(value))
        }
        check_product(name, transposed=bool(op.options.pop("transposed", False)))
        op.reads, op.writes = texts_of(read), texts_of(written)
        if func in private.collective_ops:
            group = private.CollectiveOp.get_process_group(func, args)
            op.group = tuple(dist.get_process_group_ranks(group))
            op.options = {name: op.options[name] for name in ("reduce_op",) if name in op.options}
            if _is_asynchronous(func, args, kwargs):
                stream = self._stream_of(op.group)
                self.streams.wait(stream, self.streams.last.get(self.streams.current))
            for x in written:
                self._made_by[storage_key(x)] = number
        op.stream = stream
        if name not in _ALLOCATES:  # no kernel waits, and none is waited for
            op.waits = self.streams.issue(stream, number)
        self._append(op)

    def launch(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Log a kernel that is no op of torch."""
        for x in tensors:
            self.values.forget(storage_key(x))
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
            self.streams.wait(self.streams.current, self._made_by.get(storage_key(x)))

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        key = private.cdata(storage)
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
            if private.cdata(storage) in self.live:
                self._change(private.cdata(storage), size)
            self.values.forget(private.cdata(storage))
            return result

        return counted

    def waited_methods(self, group: Any) -> dict[str, Callable[..., Any]]:
        """Return the methods of process groups, whose work says when a program waits for it."""
        methods = vars(group).items()
        return {name: self._returning_work(x) for name, x in methods if "Work" in str(x.__doc__)}

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
        keys = {*map(storage_key, gradients)} & self.live.keys() - self.gradients
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


def _arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    for place, schema in enumerate(private.schema(func).arguments):
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
    named = {each.name: each.default_value for each in private.schema(func).arguments}
    named |= {schema.name: value for schema, value in _arguments(func, args, kwargs)}
    return bool(named.get("async_op", False))
