"""Values of small tensors that a recording knows, although fake tensors have none.

Mixtures of experts read on the host how many tokens go to each rank. These numbers follow from the
router's choices, which only a run has. A recording assumes balanced routing: each expert receives
equally many tokens, and every rank routes as this one does. Megatron-LM's
`--moe-router-force-load-balancing` and torchtitan's `debug.moe_force_load_balance` do the same on
real GPUs.

A value is known if the program has made it of constants, or has counted with it: an op whose inputs
are all known is also computed on real tensors. Values belong to storages, so views share them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from simtrain.guests.recording.child import torch_internals as private
from simtrain.guests.recording.child.tensors import storage_key

_MOST_ELEMENTS = 1 << 16
"""Larger tensors are no numbers of tokens."""
_aten = torch.ops.aten
_READS_NO_VALUES = {
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
    _aten.zero_.default,
    _aten.fill_.Scalar,
}
"""Ops whose results depend on the shapes of their arguments alone."""
_FILLS = {
    _aten.ones.default: 1,
    _aten.ones_like.default: 1,
    _aten.new_ones.default: 1,
    _aten.zeros.default: 0,
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
    _aten.zero_.default: 0,
}
"""Ops that write one number into all elements."""
_COUNTS = {
    _aten.histc.default,
    _aten.bincount.default,
    _aten.scatter_add.default,
    _aten.scatter_add_.default,
}
"""Ops that count how often the numbers of experts occur."""


@dataclass(frozen=True, slots=True)
class _Value:
    """The elements of a storage.

    Args:
        elements: [elements of the storage], on the CPU.
        is_routed: they follow from the choices of a router.
    """

    elements: Tensor
    is_routed: bool


def balanced(total: int, parts: int) -> list[int]:
    """Divide a number into parts that differ by one at most, the larger ones first."""
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]


class KnownValues:
    """The values that are known, by storage."""

    def __init__(self) -> None:
        self._values: dict[int, _Value] = {}
        self._fills: dict[int, int] = {}  # the one number in a storage of any size
        self.read_routes = False
        """Whether the program has read a number that follows from a router's choices."""

    def forget(self, storage: int) -> None:
        self._values.pop(storage, None)
        self._fills.pop(storage, None)

    def remarks(self) -> Iterator[str]:
        """Say which values were assumed."""
        if self.read_routes:
            yield (
                "The program reads how many tokens go where: each expert is taken to receive "
                "equally many, and every rank to route as the first one does."
            )

    def scalar(self, tensor: Tensor) -> bool | int | float | None:
        """Return the value that the program asks for, if it is known."""
        if (real := self._real(tensor)) is None:
            return None
        self._mark_read((tensor,))
        with private.unset_fake_temporarily():
            number: bool | int | float = real.item()
        return number

    def run(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: Sequence[Tensor],
        writes: bool,
    ) -> Any:
        """Run an op on fake tensors, with a shape that may depend on known values.

        Args:
            func: the op, with its `args` and `kwargs`.
            read: the tensors among them.
            writes: it changes some of the tensors.
        """
        if func is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            kwargs = self._with_length(args, kwargs)
        try:
            is_of_integers = func is _aten.histc.default and not read[0].is_floating_point()
            # GPUs count integers too, and CPUs refuse to.
            bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
            result = read[0].new_empty(bins) if is_of_integers else func(*args, **kwargs)
        except private.DynamicOutputShapeException:
            if (result := self._shaped(func, args, kwargs, read)) is None:
                raise
        self._follow(func, args, kwargs, read, result, writes)
        return result

    def _with_length(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments with the length of what `repeat_interleave` gives."""
        if (real := self._real(args[0])) is None:
            return kwargs
        self._mark_read(args[:1])
        with private.unset_fake_temporarily():
            return {**kwargs, "output_size": int(real.sum())}

    def _shaped(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Tensor]
    ) -> Any:
        """Return what an op gives whose shape depends on values; None if these are not known."""
        if func is _aten.bincount.default:
            least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
            return read[0].new_empty(least, dtype=torch.int64) if least else None
        if (reals := self._reals(args, kwargs)) is None:
            return None
        self._mark_read(read)
        with private.unset_fake_temporarily():
            computed = func(*reals[0], **reals[1])
        return private.tree_map(
            lambda x: torch.empty_like(x) if isinstance(x, Tensor) else x, computed
        )

    def _follow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: Sequence[Tensor],
        result: Any,
        writes: bool,
    ) -> None:
        """Find out what is known after an op."""
        if func in private.sync_ops or (isinstance(result, Tensor) and result.is_meta):
            return
        fakes = (isinstance(x, private.FakeTensor) and x.constant is not None for x in read)
        if writes and all(fakes):
            return  # the fake mode has computed it on the constants already
        if func in private.collective_ops:
            self._exchange(func, args, read, result)
            return
        if func in _COUNTS and self._count(func, args, read, result):
            return
        reals = self._computable(func, args, kwargs, read)
        if reals is None:
            if writes:
                self._forget_written(func, args, kwargs)
        else:
            with private.unset_fake_temporarily():
                computed = func(*reals[0], **reals[1])
            is_routed = self._is_routed(read)
            pairs = zip(*map(private.tree_leaves, (result, computed)), strict=True)
            for fake, real in pairs:
                if isinstance(fake, Tensor):
                    self._set(fake, real, is_routed)
        if func in _FILLS and isinstance(result, Tensor):
            self._forget_with(result)
            self._fills[storage_key(result)] = _FILLS[func]

    def _computable(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Sequence[Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the real arguments of an op whose result is known; None if it is not."""
        if func in _READS_NO_VALUES:
            if not all(_is_small(x) for x in read):
                return None
            with private.unset_fake_temporarily():
                real_args, real_kwargs = private.tree_map(_blank, (args, kwargs))
            return real_args, real_kwargs
        if read and not self._knows(read[0]):
            return None
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in private.schema(func).name:
            return None
        if not read and not _creates_little(args):
            return None
        return self._reals(args, kwargs)

    def _knows(self, tensor: Tensor) -> bool:
        return (
            not isinstance(tensor, private.FakeTensor)
            or tensor.constant is not None
            or storage_key(tensor) in self._values
        )

    def _reals(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return arguments with real tensors in place of fake ones; None if one is not known."""
        reals = {}
        for x in private.tree_leaves((args, kwargs)):
            if isinstance(x, Tensor):
                if (real := self._real(x)) is None:
                    return None
                reals[id(x)] = real
        real_args, real_kwargs = private.tree_map(lambda x: reals.get(id(x), x), (args, kwargs))
        return real_args, real_kwargs

    def _real(self, tensor: Tensor) -> Tensor | None:
        """Return the elements of a tensor, as a view of those of its storage."""
        if not isinstance(tensor, private.FakeTensor):
            return tensor if _is_small(tensor) else None
        if tensor.constant is not None:
            return tensor.constant  # type: ignore[no-any-return]
        value = self._values.get(storage_key(tensor))
        if value is None or value.elements.dtype != tensor.dtype:
            return None
        with private.unset_fake_temporarily():
            place = tensor.storage_offset()
            return value.elements.as_strided(tensor.shape, tensor.stride(), place)

    def _set(self, fake: Tensor, real: Tensor, is_routed: bool) -> None:
        """Know the elements of a new tensor. Those that were written in place are known already."""
        key = storage_key(fake)
        old = self._values.get(key)
        if old is not None and old.elements.dtype == fake.dtype:
            if is_routed and not old.is_routed:
                self._values[key] = _Value(old.elements, True)
            return
        length = fake.untyped_storage().nbytes() // max(1, fake.element_size())
        if length > _MOST_ELEMENTS or not _is_small(fake):
            return
        self._forget_with(fake)
        with private.unset_fake_temporarily():
            elements = torch.zeros(length, dtype=fake.dtype)
            place = fake.storage_offset()
            elements.as_strided(fake.shape, fake.stride(), place).copy_(real.view(fake.shape))
        self._values[key] = _Value(elements, is_routed)

    def _forget_with(self, tensor: Tensor) -> None:
        """Forget a storage as soon as it is freed: another one may have its address."""
        storage = tensor.untyped_storage()
        weakref.finalize(storage, self.forget, private.cdata(storage))

    def _know(self, fake: Tensor, elements: Sequence[int]) -> None:
        """Know the numbers of tokens in a tensor."""
        self._values.pop(storage_key(fake), None)
        with private.unset_fake_temporarily():
            real = torch.tensor(elements, dtype=fake.dtype)
        self._set(fake, real, True)

    def _count(self, func: Any, args: tuple[Any, ...], read: Sequence[Tensor], result: Any) -> bool:
        """Know the numbers of tokens that an op counts; return whether it counts unknown ones."""
        if func in (_aten.histc.default, _aten.bincount.default):
            if self._real(args[0]) is not None or not isinstance(result, Tensor):
                return False
            self._know(result, balanced(args[0].numel(), max(1, result.numel())))
            return True
        if len(read) != 3:
            return False
        base, places, added = read
        known, total = self._real(base), self._sum(added)
        if known is None or total is None or base.dim() != 1 or self._real(places) is not None:
            return False
        with private.unset_fake_temporarily():
            before = known.tolist()
        more = balanced(total, max(1, len(before)))
        self._know(result, [int(x) + y for x, y in zip(before, more, strict=True)])
        return True

    def _sum(self, tensor: Tensor) -> int | None:
        """Return the sum of a tensor's elements, if it is known."""
        fill = self._fills.get(storage_key(tensor))
        if fill is not None:
            return fill * tensor.numel()
        real = self._real(tensor)
        with private.unset_fake_temporarily():
            return None if real is None else int(real.sum())

    def _exchange(
        self, func: Any, args: tuple[Any, ...], read: Sequence[Tensor], result: Any
    ) -> None:
        """Know what a collective gives, if every rank gives what this one does."""
        if not read:
            return
        exchange = _EXCHANGES.get(private.schema(func).name.split("::")[1])
        # Collectives in place have their output before their input, or one tensor for both.
        real, output = self._real(read[-1]), result if isinstance(result, Tensor) else read[0]
        is_routed = self._is_routed(read[-1:])
        self.forget(storage_key(output))
        if real is None or exchange is None or len(read) > 2:
            return
        ranks = dist.get_process_group_ranks(private.CollectiveOp.get_process_group(func, args))
        with private.unset_fake_temporarily():
            received = exchange(real.reshape(-1), len(ranks), [*ranks].index(dist.get_rank()))
        if received.numel() == output.numel():
            self._set(output, received, is_routed)

    def _forget_written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forget what an op overwrites with unknown elements."""
        for place, schema in enumerate(private.schema(func).arguments):
            if schema.is_write:
                value = args[place] if place < len(args) else kwargs.get(schema.name)
                for x in private.tree_leaves(value):
                    if isinstance(x, Tensor):
                        self.forget(storage_key(x))

    def _is_routed(self, tensors: Sequence[Any]) -> bool:
        keys = [storage_key(x) for x in tensors if isinstance(x, private.FakeTensor)]
        return any(key in self._values and self._values[key].is_routed for key in keys)

    def _mark_read(self, tensors: Sequence[Any]) -> None:
        self.read_routes = self.read_routes or self._is_routed(tensors)


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= _MOST_ELEMENTS


def _creates_little(args: tuple[Any, ...]) -> bool:
    """Whether an op without tensors makes a small one, as far as its arguments say."""
    sizes = args[0] if args and isinstance(args[0], (list, tuple)) else args[:2]
    number = 1
    for size in sizes:
        number *= max(1, int(size)) if isinstance(size, (int, float)) else 1
    return number <= _MOST_ELEMENTS


def _blank(x: Any) -> Any:
    return torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, Tensor) else x


_EXCHANGES: MappingProxyType[str, Callable[[Tensor, int, int], Tensor]] = MappingProxyType(
    {
        "alltoall_base_": lambda x, number, rank: x.view(number, -1)[rank].repeat(number),
        "all_to_all_single": lambda x, number, rank: x.view(number, -1)[rank].repeat(number),
        "_allgather_base_": lambda x, number, rank: x.repeat(number),
        "all_gather_into_tensor": lambda x, number, rank: x.repeat(number),
        "_reduce_scatter_base_": lambda x, number, rank: number * x.view(number, -1)[rank],
        "reduce_scatter_tensor": lambda x, number, rank: number * x.view(number, -1)[rank],
        "all_reduce": lambda x, number, rank: number * x,
        "allreduce_": lambda x, number, rank: number * x,
        "broadcast": lambda x, number, rank: x,
    }
)
"""What a rank receives of the elements that each rank gives: their number of ranks, and its place
among them."""
