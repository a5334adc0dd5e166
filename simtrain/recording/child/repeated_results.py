"""Build the results of ops that repeat, without asking torch again for their shapes.

Fake tensors have no values, so what an op returns follows from the shapes, strides and types of
its arguments. Models repeat their layers, and a step repeats the step before it: most ops of a
recording have been seen before. Torch's fake mode finds the result of the first op of a kind, and
what is needed to build another one is kept. Torch has such a cache too, whose keys and results take
ten times as long.

A recipe is kept only if what it builds equals what torch has built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_NAMESPACES = {"aten", "prims", "fsdp", "simtrain", "_c10d_functional"}
"""Ops whose results follow from their arguments' shapes; others may have effects of their own."""
_VALUES = {
    *(bool, int, float, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
_MOST_RECIPES = 100_000
_MODE, _DEVICE = "fake_mode", "_fake_device"
"""Attributes of a fake tensor that are set; all others are None."""
_Key = tuple[Any, ...]
_Recipe = Callable[[Sequence[FakeTensor]], Any]


class _Unrepeatable(Exception):
    """An op whose result cannot be built again."""


class RepeatedResults:
    """Results of the ops so far, by op and arguments.

    Args:
        live: storages that exist, by address. A result with one of them is no new tensor.
    """

    def __init__(self, live: dict[int, int]) -> None:
        self._live = live
        self._recipes: dict[_Key, _Recipe | None] = {}
        self._resizing: set[Any] = set()
        """Ops that have changed the shape of an argument."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op on fake tensors, or build the result that it would have."""
        arguments = (*args, *kwargs.values())
        tensors: list[FakeTensor] = []
        if func in self._resizing or func.namespace not in _NAMESPACES:
            return func(*args, **kwargs)
        try:
            shapes = _key(arguments, tensors)
        except _Unrepeatable:
            return func(*args, **kwargs)
        key = func, torch.get_default_dtype(), *kwargs, shapes
        if key in self._recipes:
            recipe = self._recipes[key]
            return func(*args, **kwargs) if recipe is None else recipe(tensors)
        result = func(*args, **kwargs)
        if _key(arguments, []) != shapes:
            self._resizing.add(func)
        elif len(self._recipes) < _MOST_RECIPES:
            self._recipes[key] = self._recipe(result, tensors)
        return result

    def _recipe(self, result: Any, tensors: Sequence[FakeTensor]) -> _Recipe | None:
        """Return how to build a result like this one from tensors like these; None if unknown."""
        try:
            recipe = _recipe_of(result, tensors, self._live)
            built = recipe(tensors)
        except (_Unrepeatable, AttributeError, RuntimeError, TypeError):
            return None
        return recipe if _is_alike(result, built) else None


def _key(values: Sequence[Any], tensors: list[FakeTensor]) -> _Key:
    """Return what results depend on, of each argument, and add the tensors among them to a list."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, FakeTensor):
            # A constant has a value after all.
            if value.constant is not None:
                raise _Unrepeatable
            tensors.append(value)
            parts.append(_metadata(value))
        elif isinstance(value, (list, tuple)):
            parts.append(_key(value, tensors))
        elif type(value) in _VALUES:
            parts.append((type(value), value))  # 1 and 1.0 are equal
        else:
            raise _Unrepeatable
    return tuple(parts)


def _metadata(x: torch.Tensor) -> _Key:
    """Return what is seen of a tensor; its dispatch keys say device, layout and conjugation."""
    keys = torch._C._dispatch_keys(x).raw_repr()
    return x.dtype, x.shape, x.stride(), x.storage_offset(), keys


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument, which an op returns."""

    place: int

    def __call__(self, tensors: Sequence[FakeTensor]) -> FakeTensor:
        return tensors[self.place]


@dataclass(frozen=True, slots=True)
class _NewTensor:
    """A tensor that an op makes: a view of an argument, or one with storage of its own."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    attributes: dict[str, Any]
    viewed: int | None

    def __call__(self, tensors: Sequence[FakeTensor]) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            if self.viewed is None:
                elem = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            else:
                elem = torch.empty(0, dtype=self.dtype, device="meta")
                storage: Any = tensors[self.viewed].untyped_storage()
                elem.set_(storage, self.offset, self.shape, self.stride)
            make: Any = torch.Tensor._make_subclass
            x: FakeTensor = make(
                FakeTensor,
                elem,
                False,
                dispatch_device=True,
                device_for_backend_keys=self.attributes[_DEVICE],
            )
        torch._C._set_throw_on_mutable_data_ptr(x)
        x.__dict__.update(self.attributes)
        return x


@dataclass(frozen=True, slots=True)
class _Several:
    """Several results, as a tuple or a list."""

    kind: type
    parts: tuple[_Recipe | None, ...]

    def __call__(self, tensors: Sequence[FakeTensor]) -> Any:
        return self.kind(part and part(tensors) for part in self.parts)


def _recipe_of(result: Any, tensors: Sequence[FakeTensor], live: dict[int, int]) -> _Recipe:
    if type(result) in (list, tuple):
        parts = tuple(each if each is None else _recipe_of(each, tensors, live) for each in result)
        new = [
            _address(each)
            for each, part in zip(result, parts, strict=True)
            if isinstance(part, _NewTensor) and part.viewed is None
        ]
        if len({*new}) < len(new):  # of two views of a new storage, neither makes it
            raise _Unrepeatable
        return _Several(type(result), parts)
    if not isinstance(result, FakeTensor):
        raise _Unrepeatable
    same = [place for place, each in enumerate(tensors) if each is result]
    if same:
        return _Argument(_only(same))
    viewed = [place for place, x in enumerate(tensors) if _address(x) == _address(result)]
    if not viewed and _address(result) in live:
        raise _Unrepeatable
    attributes = dict(result.__dict__)
    is_set = {name for name, value in attributes.items() if value is not None}
    if is_set != {_MODE, _DEVICE} or result.requires_grad:
        raise _Unrepeatable
    shape, stride, offset = result.shape, result.stride(), int(result.storage_offset())
    place = _only(viewed) if viewed else None
    return _NewTensor(shape, stride, offset, result.dtype, attributes, place)


def _only(places: list[int]) -> int:
    """Return the only place; of two, another op's arguments would not say which."""
    if len(places) > 1:
        raise _Unrepeatable
    return places[0]


def _address(x: torch.Tensor) -> int:
    address: int = x.untyped_storage()._cdata
    return address


def _is_alike(result: Any, built: Any) -> bool:
    """Whether a result that was built equals torch's."""
    if isinstance(result, (list, tuple)):
        return all(_is_alike(*pair) for pair in zip(result, built, strict=True))
    if result is built:
        return True
    sizes = {x.untyped_storage().nbytes() for x in (result, built)}
    return len(sizes) == 1 and _metadata(result) == _metadata(built)
