"""`dataclasses`, with classes that are quick to define: a command defines 270, and uses half.

`dataclasses` compiles up to six functions of a class where it is defined, for 0.4 ms. Here they
are compiled when they are looked up first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import *  # noqa: F403 (all but `dataclass` is the same)
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import cache, partial
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, cast

if not TYPE_CHECKING:

    def dataclass(cls=None, /, *, eq=True, repr=True, frozen=False, slots=False, **others):
        """Make a dataclass; parameters are those of `dataclasses.dataclass`."""
        if cls is None:
            return partial(dataclass, eq=eq, repr=repr, frozen=frozen, slots=slots, **others)
        # `dataclasses` checks that frozen classes inherit from frozen ones only.
        inherits = hasattr(cls, "__dataclass_params__")
        cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise it is made of the signature
        options = {"init": False, "repr": False, "eq": False, "frozen": frozen and inherits}
        made = dataclasses.dataclass(cls, **options, slots=slots, **others)
        methods = {"__init__": _Compiled(made, partial(_init, made, frozen))}
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"] = _Compiled(made, partial(_eq, made))
            methods["__hash__"] = _Compiled(made, partial(_hash, made)) if frozen else None
        if frozen and not inherits:
            made.__dataclass_params__.frozen = True
            methods |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
        for name, method in methods.items():
            if vars(cls).get(name) is None:  # a class that defines __eq__ has None for __hash__
                setattr(made, name, method)
        return made


class _Compiled:
    """A method that is compiled when it is looked up first, and takes its place in the class."""

    __slots__ = ("compile", "owner")

    def __init__(self, owner: type, compile: Callable[[], Any]) -> None:
        self.owner, self.compile = owner, compile

    def __get__(self, value: object, kind: type | None = None) -> Any:
        function = self.compile()
        function.__module__ = self.owner.__module__
        function.__qualname__ = f"{self.owner.__qualname__}.{function.__name__}"
        setattr(self.owner, function.__name__, function)
        return function if value is None else function.__get__(value)


@cache
def _template(text: str) -> CodeType:
    """Compile a function whose fields are f0, f1, ...; most classes share it with others."""
    return cast(CodeType, compile(text, __name__, "exec").co_consts[0])


def _function(owner: Any, head: str, lines: list[str], **values: Any) -> Any:
    code = _template(f"def {head}:\n " + "\n ".join(lines))
    names: dict[Any, Any] = {f"f{place}": each.name for place, each in enumerate(fields(owner))}
    groups = code.co_varnames, code.co_names, code.co_consts
    variables, globals_, constants = (tuple(names.get(n, n) for n in group) for group in groups)
    code = code.replace(co_varnames=variables, co_names=globals_, co_consts=constants)
    return FunctionType(code, values, code.co_name)


def _init(owner: Any, frozen: bool) -> Any:
    every = {f"f{place}": each for place, each in enumerate(fields(owner))}
    defaults = {name: _default(each) for name, each in every.items()}
    in_order = [name for name, each in every.items() if each.init and not each.kw_only]
    by_name = [name for name, each in every.items() if each.init and each.kw_only]
    line = "set_(self, '{0}', {1})" if frozen else "self.{0} = {1}"
    lines = [
        line.format(name, text) for name, each in every.items() if (text := _value(name, each))
    ]
    lines += ["self.__post_init__()"] * hasattr(owner, "__post_init__")
    parameters = ", ".join(["self", *in_order, *["*"] * bool(by_name), *by_name])
    values = {f"default_{name}": default for name, default in defaults.items()}
    values["set_"] = object.__setattr__
    function = _function(owner, f"__init__({parameters})", lines or ["pass"], **values)
    written = {name: default for name, default in defaults.items() if default is not MISSING}
    function.__defaults__ = tuple(written[name] for name in in_order if name in written)
    kw_defaults = {every[name].name: written[name] for name in by_name if name in written}
    function.__kwdefaults__ = kw_defaults
    function.__annotations__ = {each.name: each.type for each in every.values()}
    return function


def _value(name: str, each: Field[Any]) -> str:
    """Return the text of a field's value; a factory as its own default stands for a new value."""
    default = f"default_{name}"
    if each.default_factory is MISSING:
        return name if each.init else default * (each.default is not MISSING)
    return f"{default}() if {name} is {default} else {name}" if each.init else f"{default}()"


def _default(each: Field[Any]) -> Any:
    return each.default_factory if each.default is MISSING else each.default


def _eq(owner: Any) -> Any:
    test = "if other.__class__ is self.__class__ else NotImplemented"
    line = f"return {_compared(owner, 'self')} == {_compared(owner, 'other')} {test}"
    return _function(owner, "__eq__(self, other)", [line])


def _hash(owner: Any) -> Any:
    return _function(owner, "__hash__(self)", [f"return hash({_compared(owner, 'self')})"])


def _compared(owner: Any, name: str) -> str:
    places = (place for place, each in enumerate(fields(owner)) if each.compare)
    return f"({''.join(f'{name}.f{place}, ' for place in places)})"


@recursive_repr()
def _repr(self: Any) -> str:
    words = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(words)})"


def _refuse_change(self: object, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
