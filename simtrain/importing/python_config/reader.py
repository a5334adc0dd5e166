"""Follow the functions of a Python file that build configs, without executing anything.

The reader knows literals, names, calls with keywords, attributes, arithmetic, conditions and calls
of the file's own functions. All else is unknown, and so is what a loop or an unknown condition
assigns. A call of another file's function makes an object with its arguments as fields.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simtrain.importing.python_config.values import Built, Symbol, Unknown, unknown_in

_MOST_STEPS = 200_000
_MOST_CALLS = 30
_MOST_DIGITS = 10**18
_LONGEST = 10_000
_MOST_CHARACTERS = 100

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_PLAIN = int | float | str | bool | None
_TEXT_METHODS: dict[str, Callable[[str], str]] = {
    "lower": str.lower,
    "upper": str.upper,
    "strip": str.strip,
}


class TooLong(Exception):
    """The file takes more steps than are followed."""


class _Returned(Exception):
    """A function returns a value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Reader:
    """The names of a file, and the values of its functions.

    Args:
        tree: the parsed file.
        wrappers: symbols by their last word whose first argument is what they make, such as
            run.Config(Trainer, ...).
    """

    def __init__(self, tree: ast.Module, wrappers: Sequence[str] = ()) -> None:
        self.wrappers = wrappers
        self.functions: dict[str, ast.FunctionDef] = {}
        self.names: dict[str, Any] = {}
        self.steps = self.calls = 0
        with contextlib.suppress(_Returned):  # ast.parse accepts a return outside of a function
            self._run(tree.body, self.names)

    def result(self, name: str) -> Any:
        """Return the value of a function without required arguments, or of a name."""
        if name in self.functions:
            return self._call(self.functions[name], [], {})
        return self.names.get(name)

    def required(self, name: str) -> list[str]:
        """Return the parameters of a function that have no default."""
        arguments = self.functions[name].args
        positional = [*arguments.posonlyargs, *arguments.args]
        first = positional[: len(positional) - len(arguments.defaults)]
        keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return [each.arg for each in (*first, *(key for key, value in keywords if value is None))]

    # Statements.

    def _run(self, statements: Sequence[ast.stmt], names: dict[str, Any]) -> None:
        for statement in statements:
            self._count()
            self._statement(statement, names)

    def _count(self) -> None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise TooLong

    def _statement(self, statement: ast.stmt, names: dict[str, Any]) -> None:
        match statement:
            case ast.FunctionDef(name=name):
                if names is self.names:
                    self.functions[name] = statement
                names[name] = statement
            case ast.ClassDef(name=name):
                names[name] = Symbol(name)
            case ast.Import(names=aliases):
                for alias in aliases:
                    name = alias.asname or alias.name.partition(".")[0]
                    names[name] = Symbol(alias.name if alias.asname else name)
            case ast.ImportFrom(module=module, names=aliases):
                for alias in aliases:
                    names[alias.asname or alias.name] = Symbol(f"{module or ''}.{alias.name}")
            case ast.Assign(targets=targets, value=value):
                result = self._value(value, names)
                for target in targets:
                    self._assign(target, result, names, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value, names), names, value)
            case ast.AugAssign(target=target, op=op, value=value):
                before = self._value(target, names)
                result = self._combined(op, before, self._value(value, names), statement)
                self._assign(target, result, names, statement)
            case ast.Return(value=value):
                raise _Returned(self._value(value, names) if value else None)
            case ast.If(test=test, body=body, orelse=orelse):
                if (truth := self._truth(test, names)) is None:
                    self._forget([*body, *orelse], names, test)
                else:
                    self._run(body if truth else orelse, names)
            case ast.With(body=body):
                self._run(body, names)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self._run([*body, *orelse, *final], names)
                for handler in handlers:
                    self._forget(handler.body, names, statement)
            case ast.Expr(value=ast.Call() as call):
                self._effect(call, names)
            case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
                if isinstance(statement, ast.For):
                    items = self._value(statement.iter, names)
                    if isinstance(items, Built):
                        items.changes["loop"] = statement
                    lost = _unknown(statement, "set in a loop")
                    self._assign(statement.target, lost, names, statement)
                self._forget([*body, *orelse], names, statement)
            case ast.Match(cases=cases):
                self._forget([each for case in cases for each in case.body], names, statement)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._assign(target, _unknown(target, "deleted"), names, statement)

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any], node: ast.AST) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Attribute(value=base, attr=name):
                owner = self._value(base, names)
                if isinstance(owner, Built):
                    owner.assign(name, value, target)
            case ast.Subscript(value=base, slice=index):
                owner, key = self._value(base, names), self._value(index, names)
                if isinstance(owner, dict) and _is_key(key):
                    owner[key] = value
                elif isinstance(owner, list | dict):
                    _spoil(owner, _unknown(target, "an item of it is assigned"))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                is_known = isinstance(value, list | tuple) and len(value) == len(targets)
                parts = value if is_known else [_unknown(node, "a part of a value")] * len(targets)
                for part, each in zip(parts, targets, strict=True):
                    if isinstance(value, Built) and not is_known:
                        part = Built(Symbol(""), node)
                    self._assign(each, part, names, node)
            case ast.Starred(value=inner):
                self._assign(inner, _unknown(node, "a part of a value"), names, node)

    def _forget(self, body: Sequence[ast.stmt], names: dict[str, Any], cause: ast.AST) -> None:
        """Make all that statements may assign or change unknown."""
        reason = "depends on a loop" if isinstance(cause, ast.stmt) else "depends on a condition"
        lost = _unknown(cause, reason)
        for node in (each for statement in body for each in ast.walk(statement)):
            self._count()
            match node:
                case ast.Assign(targets=targets):
                    for target in targets:
                        self._assign(target, lost, names, node)
                case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                    self._assign(target, lost, names, node)
                case ast.Call(func=ast.Attribute(value=base)):
                    _spoil(self._value(base, names), lost)
                case ast.Call(func=ast.Name(id=name), args=arguments):
                    for argument in arguments:
                        value = self._value(argument, names)
                        if isinstance(value, Built) and isinstance(node, ast.Call):
                            value.changes[name] = node
                case ast.Return():
                    raise _Returned(lost)

    def _effect(self, call: ast.Call, names: dict[str, Any]) -> None:
        """Follow a call whose value is not used."""
        made = self._value(call, names)
        if isinstance(made, Built):
            for argument in (*made.positional, *made.fields.values(), made.receiver):
                if isinstance(argument, Built):
                    argument.changes[made.symbol.last] = call

    # Expressions.

    def _value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        self._count()
        match node:
            case ast.Constant(value=value):
                is_plain = isinstance(value, _PLAIN)
                return (
                    value if is_plain and _is_short(value) else _unknown(node, "not a plain value")
                )
            case ast.Name(id=name):
                return names.get(name, self.names.get(name, Symbol(name)))
            case ast.Attribute(value=base, attr=name):
                return self._attribute(self._value(base, names), name, node)
            case ast.List(elts=elements):
                return [self._value(element, names) for element in elements]
            case ast.Tuple(elts=elements):
                return tuple(self._value(element, names) for element in elements)
            case ast.Dict(keys=keys, values=values):
                return self._dict(zip(keys, values, strict=True), names)
            case ast.Call():
                return self._called(node, names)
            case ast.BinOp(left=left, op=op, right=right):
                sides = self._value(left, names), self._value(right, names)
                return self._combined(op, *sides, node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand, names)
                return -value if isinstance(value, int | float) else _unknown(node)
            case ast.BoolOp(op=op, values=values):
                return self._first_decisive(isinstance(op, ast.Or), values, names, node)
            case ast.UnaryOp(op=ast.Not()) | ast.Compare():
                truth = self._truth(node, names)
                return _unknown(node) if truth is None else truth
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self._truth(test, names)
                return (
                    _unknown(test, "depends on a condition")
                    if truth is None
                    else self._value(body if truth else orelse, names)
                )
            case ast.Subscript(value=base, slice=index):
                return self._item(self._value(base, names), self._value(index, names), node)
        return _unknown(node)

    def _first_decisive(
        self, decisive: bool, values: Sequence[ast.expr], names: dict[str, Any], node: ast.AST
    ) -> Any:
        """Return the value of `or` (decisive is True) or `and`."""
        value: Any = not decisive
        for each in values:
            value = self._value(each, names)
            if unknown_in(value):
                return _unknown(node)
            if bool(value) == decisive:
                return value
        return value

    def _dict(
        self, pairs: Iterable[tuple[ast.expr | None, ast.expr]], names: dict[str, Any]
    ) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for key, node in pairs:
            value = self._value(node, names)
            if key is None:  # **other
                items |= value if isinstance(value, dict) else {"**": _unknown(node)}
            elif _is_key(name := self._value(key, names)):
                items[name] = value
        return items

    def _attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        if isinstance(owner, Symbol):
            return Symbol(f"{owner.name}.{name}")
        if isinstance(owner, Built):
            return owner.attribute(name, node)
        return owner if isinstance(owner, Unknown) else _unknown(node)

    def _item(self, owner: Any, key: Any, node: ast.AST) -> Any:
        try:
            if isinstance(owner, list | tuple | dict | str) and _is_key(key):
                return owner[key]
        except (LookupError, TypeError):
            pass
        return _unknown(node)

    def _combined(self, op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
        """Return the value of an operator; unknown unless both sides are plain or lists."""
        apply = _OPERATORS.get(type(op))
        if apply is None or unknown_in(left) or unknown_in(right):
            return _unknown(node)
        if isinstance(left, Built) or isinstance(right, Built):
            return _unknown(node)
        if isinstance(left, str) and isinstance(op, ast.Mod):
            return _unknown(node)
        sequences = [side for side in (left, right) if isinstance(side, list | tuple | str)]
        times = [side for side in (left, right) if isinstance(side, int)]
        if isinstance(op, ast.Mult) and any(
            len(items) * number > _LONGEST for items in sequences for number in times
        ):
            return _unknown(node)
        try:
            value = apply(left, right)
        except (TypeError, ValueError, ArithmeticError):
            return _unknown(node)
        return value if _is_short(value) else _unknown(node)

    def _truth(self, node: ast.expr, names: dict[str, Any]) -> bool | None:
        """Return whether an expression is true, or None if that is unknown."""
        match node:
            case ast.BoolOp(op=op, values=values):
                truths = [self._truth(value, names) for value in values]
                decisive = isinstance(op, ast.Or)
                if decisive in truths:
                    return decisive
                return None if None in truths else not decisive
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self._truth(operand, names)
                return None if truth is None else not truth
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                sides = self._value(left, names), self._value(right, names)
                value = (
                    all(side is None for side in sides) == isinstance(op, ast.Is)
                    if isinstance(op, ast.Is | ast.IsNot) and not any(map(unknown_in, sides))
                    else self._combined(op, *sides, node)
                )
                return value if isinstance(value, bool) else None
        value = self._value(node, names)
        return None if unknown_in(value) else bool(value)

    # Calls.

    def _called(self, node: ast.Call, names: dict[str, Any]) -> Any:
        positional = [self._value(argument, names) for argument in node.args]
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, names)
            if keyword.arg:
                keywords[keyword.arg] = value
            else:  # **options
                keywords |= value if isinstance(value, dict) else {"**": _unknown(keyword.value)}
        if isinstance(node.func, ast.Attribute):
            receiver = self._value(node.func.value, names)
            if not isinstance(receiver, Symbol):
                return self._method(receiver, node, positional, keywords)
        function = self._value(node.func, names)
        if isinstance(function, ast.FunctionDef):
            return self._call(function, positional, keywords)
        if not isinstance(function, Symbol):
            return _unknown(node)
        return self._made(function, node, positional, keywords)

    def _made(
        self, symbol: Symbol, node: ast.Call, positional: list[Any], fields: dict[str, Any]
    ) -> Any:
        """Return the value of a call of a function or class that the file does not contain."""
        match symbol.name, positional:
            case "len", [list() | tuple() | str() as items]:
                return len(items)
            case "dict", []:
                return fields
            case (("int" | "float" | "bool"), [int() | float() as number]) if number == number:
                return {"int": int, "float": float, "bool": bool}[symbol.name](number)
            case "getattr", [Built() as owner, str() as name, *_]:
                return owner.attribute(name, node)
            case "typing.cast", [_, value]:
                return value
            case "copy.deepcopy", [Built() as original]:
                return original.copy()
            case "dataclasses.replace", [Built() as original]:
                changed = original.copy()
                for name, value in fields.items():
                    changed.assign(name, value, node)
                return changed
        if symbol.name in self.wrappers and positional and isinstance(positional[0], Symbol):
            symbol, *positional = positional
        places: dict[str, ast.AST] = dict.fromkeys(fields, node)
        places |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        return Built(symbol, node, positional, fields, places)

    def _method(
        self, receiver: Any, node: ast.Call, positional: list[Any], fields: dict[str, Any]
    ) -> Any:
        assert isinstance(node.func, ast.Attribute)
        name = node.func.attr
        match receiver:
            case Built():
                places: dict[str, ast.AST] = dict.fromkeys(fields, node)
                return Built(Symbol(name), node, positional, fields, places, receiver=receiver)
            case list() if name == "append" and len(positional) == 1 and len(receiver) < _LONGEST:
                receiver.append(positional[0])
            case list() if name == "extend" and positional and isinstance(positional[0], list):
                if len(receiver) + len(positional[0]) < _LONGEST:
                    receiver.extend(positional[0])
            case list() | dict():
                _spoil(receiver, _unknown(node, "changed by a method"))
            case str() if name in _TEXT_METHODS and not positional:
                return _TEXT_METHODS[name](receiver)
        return _unknown(node)

    def _call(
        self, function: ast.FunctionDef, positional: list[Any], keywords: dict[str, Any]
    ) -> Any:
        """Return the value of a function of the file."""
        if self.calls >= _MOST_CALLS:
            raise TooLong
        arguments = function.args
        names: dict[str, Any] = {
            each.arg: _unknown(function, f"the parameter {each.arg} of {function.name}")
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
        in_order = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        defaults = arguments.defaults
        for name, value in zip(in_order[len(in_order) - len(defaults) :], defaults, strict=True):
            names[name] = self._value(value, self.names)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                names[each.arg] = self._value(default, self.names)
        names |= dict(zip(in_order, positional, strict=False))
        names |= {name: value for name, value in keywords.items() if name in names}
        self.calls += 1
        try:
            self._run(function.body, names)
        except _Returned as returned:
            return returned.value
        finally:
            self.calls -= 1
        return None


def _unknown(node: ast.AST, reason: str = "is not evaluated") -> Unknown:
    return Unknown(_words(node)[:_MOST_CHARACTERS], reason)


def _words(node: ast.AST, depth: int = 10) -> str:
    """Return an expression in a few characters."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=base, attr=name) if depth:
            return f"{_words(base, depth - 1)}.{name}"
        case ast.Call(func=function) if depth:
            return f"{_words(function, depth - 1)}(...)"
        case ast.FunctionDef(name=name):
            return name
    return type(node).__name__.lower()


def _is_key(value: Any) -> bool:
    """Whether a value can be a key: a plain one, or a tuple of plain ones."""
    return all(isinstance(each, _PLAIN) for each in (value if type(value) is tuple else [value]))


def _is_short(value: Any) -> bool:
    """Whether a value is small enough to be used further."""
    if isinstance(value, int | float):
        return abs(value) < _MOST_DIGITS
    return not isinstance(value, list | tuple | str) or len(value) <= _LONGEST


def _spoil(value: Any, lost: Unknown) -> None:
    """Make the items of a list or dict unknown."""
    if isinstance(value, list):
        value[:] = [lost]
    elif isinstance(value, dict):
        for key in value:
            value[key] = lost
