"""`dataclasses`, with classes that are quick to define: a command defines 270, and uses half.

`dataclasses` compiles up to six functions of a class where it is defined, for 0.4 ms. Here they
are compiled when they are looked up first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY as KW_ONLY
from dataclasses import MISSING as MISSING
from dataclasses import Field, FrozenInstanceError
from dataclasses import asdict as asdict
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import is_dataclass as is_dataclass
from dataclasses import replace as replace
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

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
    """A method that is compiled when it is looked up first, and then takes its place in the class.

    `describe` returns its first line, its other lines, the values of names, and its defaults.
    """

    __slots__ = ("describe", "owner")

    def __init__(self, owner: type, describe: Callable[[], Any]) -> None:
        self.owner, self.describe = owner, describe

    def __get__(self, value: object, kind: type | None = None) -> Any:
        function = self.describe()
        function.__module__ = self.owner.__module__
        function.__qualname__ = f"{self.owner.__qualname__}.{function.__name__}"
        setattr(self.owner, function.__name__, function)
        return function if value is None else function.__get__(value)


def _function(head: str, lines: list[str], **names: Any) -> Any:
    exec(f"def {head}:\n " + "\n ".join(lines), names)
    return names[head.partition("(")[0]]


def _init(owner: Any, frozen: bool) -> Any:
    every = fields(owner)
    in_order = {each.name: _default(each) for each in every if each.init and not each.kw_only}
    by_name = {each.name: _default(each) for each in every if each.init and each.kw_only}
    line = "set_(self, '{0}', {1})" if frozen else "self.{0} = {1}"
    lines = [line.format(each.name, value) for each in every if (value := _value(each))]
    lines += ["self.__post_init__()"] * hasattr(owner, "__post_init__")
    parameters = ["self", *in_order, *["*"] * bool(by_name), *by_name]
    defaults = {f"default_{each.name}": _default(each) for each in every}
    head = f"__init__({', '.join(parameters)})"
    function = _function(head, lines or ["pass"], set_=object.__setattr__, **defaults)
    function.__defaults__ = tuple(value for value in in_order.values() if value is not MISSING)
    function.__kwdefaults__ = {
        name: value for name, value in by_name.items() if value is not MISSING
    }
    function.__annotations__ = {each.name: each.type for each in every}
    return function


def _value(each: Field[Any]) -> str:
    """Return the text of a field's value; a factory as its own default stands for a new value."""
    name, default = each.name, f"default_{each.name}"
    if each.default_factory is MISSING:
        return name if each.init else default * (each.default is not MISSING)
    return f"{default}() if {name} is {default} else {name}" if each.init else f"{default}()"


def _default(each: Field[Any]) -> Any:
    return each.default_factory if each.default is MISSING else each.default


def _eq(owner: Any) -> Any:
    left, right = (_compared(owner, name) for name in ("self", "other"))
    test = "if other.__class__ is self.__class__ else NotImplemented"
    return _function("__eq__(self, other)", [f"return {left} == {right} {test}"])


def _hash(owner: Any) -> Any:
    return _function("__hash__(self)", [f"return hash({_compared(owner, 'self')})"])


def _compared(owner: Any, name: str) -> str:
    return f"({''.join(f'{name}.{each.name}, ' for each in fields(owner) if each.compare)})"


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
