"""Read a subset of Python as text, without executing anything.

The subset has literals, names, assignments, imports, functions of the file, calls with keywords,
attributes, `append` and `extend` of lists, arithmetic, comparisons, and conditions on known values.
Calls of other files' classes and functions make objects with their arguments as fields.

Everything else is unknown: `_forget` makes all names and fields unknown that such a statement or
expression may assign, and notes on objects that it may change them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import operator
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simtrain.importing.python_config.values import Built, Symbol, Unknown, objects_of, unknown_in

_MAX_STEPS = 500_000
"""Of all readings of a file: one of it, and one for each config in it."""
_MAX_CALLS = 30
_MAX_NUMBER = 10**18
_MAX_LENGTH = 10_000
_MAX_CHARACTERS = 100

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
_CHANGERS = {"setattr", "delattr", "exec", "eval"}
"""Builtin functions that may change their arguments."""
_COPIERS = {"copy.copy", "copy.deepcopy", "dataclasses.replace", "typing.cast"}
"""Functions that return their argument or a copy of it, and no object with arguments as fields."""

Scope = ChainMap[str, Any]
"""The names of a function, then those of the functions around it, then those of the file."""


class TooLong(Exception):
    """The file takes more steps than are followed."""


class _Returned(Exception):
    """A function returns a value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the file, its defaults, and the names around it."""

    node: ast.FunctionDef
    defaults: dict[str, Any]
    scope: Scope

    @property
    def positional(self) -> list[str]:
        """The parameters that need no keyword."""
        return [each.arg for each in (*self.node.args.posonlyargs, *self.node.args.args)]

    @property
    def parameters(self) -> list[str]:
        """All parameters but *args and **kwargs."""
        return [*self.positional, *(each.arg for each in self.node.args.kwonlyargs)]


class Reader:
    """The names of a file, and the values of its functions.

    Args:
        tree: the parsed file.
        wrappers: symbols whose first argument is what they make, such as run.Config(Trainer, ...).
        steps: the steps of earlier readings of the file.

    Raises:
        TooLong: reading takes too many steps; so does `result`.
    """

    def __init__(self, tree: ast.Module, wrappers: Sequence[str] = (), steps: int = 0) -> None:
        self.wrappers = wrappers
        self.scope: Scope = ChainMap()
        self.steps, self.calls = steps, 0
        self.forgotten: set[Function] = set()
        with contextlib.suppress(_Returned):  # ast.parse accepts a return outside of a function
            self._run(tree.body, self.scope)

    def result(self, name: str) -> Any:
        """Return the value of a name, or of the function of that name without arguments."""
        value = self.scope.get(name)
        return self._call(value, [], {}) if isinstance(value, Function) else value

    def _count(self) -> None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise TooLong

    # Statements.

    def _run(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self._count()
            match statement:
                case ast.FunctionDef(name=name, args=arguments):
                    scope[name] = Function(statement, self._defaults(arguments, scope), scope)
                case ast.ClassDef(name=name, body=body):
                    self._forget(body, scope.new_child())
                    scope[name] = Symbol(name)
                case ast.Import() | ast.ImportFrom():
                    scope.update(_imports(statement))
                case ast.Assign(targets=targets, value=value):
                    result = self._value(value, scope)
                    for target in targets:
                        self._assign(target, result, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, self._value(value, scope), scope)
                case ast.AnnAssign():
                    pass
                case ast.Return(value=value):
                    raise _Returned(self._value(value, scope) if value else None)
                case ast.If(test=test, body=body, orelse=orelse):
                    truth = self._value(test, scope)
                    if unknown_in(truth):
                        self._forget([*body, *orelse], scope, test)
                    else:
                        self._run(body if truth else orelse, scope)
                case ast.Expr(value=ast.Call() as call):
                    made = self._value(call, scope)
                    if isinstance(made, Unknown):
                        _note_change(made, call)
                    elif isinstance(made, Built) and made.node is call:
                        _note_change((*made.positional, *made.fields.values(), made.receiver), call)
                case _:
                    self._forget([statement], scope)

    def _defaults(self, arguments: ast.arguments, scope: Scope) -> dict[str, Any]:
        positional = [*arguments.posonlyargs, *arguments.args]
        first = len(positional) - len(arguments.defaults)
        names = [each.arg for each in (*positional[first:], *arguments.kwonlyargs)]
        nodes = [*arguments.defaults, *arguments.kw_defaults]
        pairs = zip(names, nodes, strict=True)
        return {name: self._value(node, scope) for name, node in pairs if node is not None}

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=base, attr=name):
                owner = self._value(base, scope)
                if isinstance(owner, Built):
                    owner.assign(name, value, target)
                else:
                    _note_change(owner, target, value)
            case ast.Subscript(value=base):
                _note_change(self._value(base, scope), target, value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                if isinstance(value, list | tuple) and len(value) == len(targets):
                    parts = [*value]
                elif isinstance(value, Built):  # what a function of another file returns
                    parts = [Built(Symbol(""), target) for _ in targets]
                else:
                    parts = [_unknown(target, value)] * len(targets)
                for each, part in zip(targets, parts, strict=True):
                    self._assign(each, part, scope)
            case ast.Starred(value=inner):
                self._assign(inner, _unknown(target, value), scope)

    # Statements and expressions outside of the subset.

    def _forget(
        self, nodes: Sequence[ast.AST], scope: Scope, condition: ast.AST | None = None
    ) -> Unknown:
        """Make unknown what statements or expressions may assign, and return their unknown value.

        Args:
            nodes: the statements or expressions, which are not followed.
            scope: the names that they see.
            condition: the unknown condition that they depend on, if they do.
        """
        parts = [part for node in nodes for part in ast.walk(node)]
        named = [*(self._named(node, scope) for node in nodes), *self._mentioned(parts, scope)]
        lost = _unknown(condition or nodes[0], named)
        if condition:
            lost = Unknown(lost.text, "a condition that is not known", lost.objects)
        names = [part for part in parts if isinstance(part, ast.Name)]
        others = [part for part in parts if not isinstance(part, ast.Name | ast.Constant)]
        for part in (*others, *names, *others):  # of objects that the names had, and may have
            self._count()
            self._lose(part, scope, lost)
        inner = {
            each
            for part in parts
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            for each in ast.walk(part)
        }
        if any(isinstance(part, ast.Return) and part not in inner for part in parts):
            raise _Returned(lost)
        return lost

    def _lose(self, part: ast.AST, scope: Scope, lost: Unknown) -> None:
        """Make unknown what one node assigns, and note what a call may change."""
        match part:
            case ast.Name(ctx=ast.Store() | ast.Del(), id=name):
                scope[name] = lost
            case ast.Attribute() | ast.Subscript() if not isinstance(part.ctx, ast.Load):
                self._assign(part, lost, scope)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                for around in scope.maps:
                    around.update(dict.fromkeys(around.keys() & {*names}, lost))
            case ast.Import() | ast.ImportFrom():
                for name, symbol in _imports(part).items():
                    before = scope.get(name, symbol)
                    is_same = isinstance(before, Symbol) and before.last == symbol.last
                    scope[name] = symbol if is_same else lost
            case ast.Call(func=function, args=arguments, keywords=keywords):
                called = self._named(function, scope)
                if isinstance(called, Function) and called not in self.forgotten:
                    self.forgotten.add(called)
                    with contextlib.suppress(_Returned):
                        self._forget(called.node.body, called.scope.new_child())
                    self.forgotten.remove(called)
                if not (isinstance(called, Symbol) and _is_reader(called)):
                    owner = function.value if isinstance(function, ast.Attribute) else function
                    for each in (owner, *arguments, *(keyword.value for keyword in keywords)):
                        _note_change(self._named(each, scope), part, lost)
            case ast.alias():
                pass
            case _:  # functions, classes, and names of exceptions and patterns
                for word in ("name", "rest"):
                    if isinstance(bound := getattr(part, word, None), str):
                        scope[bound] = lost

    def _mentioned(self, parts: Iterable[ast.AST], scope: Scope) -> Iterator[Any]:
        """Yield the values that nodes name, except those of which they only read a part."""
        for part in parts:
            if isinstance(part, ast.Lambda | ast.FunctionDef):  # run later, when names have others
                yield from (self._named(each, scope) for each in ast.walk(part))
            elif not isinstance(part, ast.Attribute | ast.Subscript | ast.Compare):
                for child in ast.iter_child_nodes(part):
                    if child is not getattr(part, "func", None):
                        yield self._named(child, scope)

    def _named(self, node: ast.AST, scope: Scope) -> Any:
        """Return the value of a name, or of attributes and items of a name; None of other nodes."""
        if isinstance(node, ast.Starred):
            node = node.value
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return None
        has_call = any(isinstance(each, ast.Call) for each in ast.walk(node))
        return None if has_call else self._value(node, scope)

    # Expressions.

    def _value(self, node: ast.expr, scope: Scope) -> Any:
        self._count()
        match node:
            case ast.Constant(value=value) if isinstance(value, _PLAIN) and _is_short(value):
                return value
            case ast.Name(id=name):
                return scope.get(name, Symbol(name))
            case ast.Attribute(value=base, attr=name):
                return _attribute(self._value(base, scope), name, node)
            case ast.List(elts=items) if not _has_star(items):
                return [self._value(item, scope) for item in items]
            case ast.Tuple(elts=items) if not _has_star(items):
                return tuple(self._value(item, scope) for item in items)
            case ast.Dict(keys=keys, values=values):
                return self._dict(zip(keys, values, strict=True), scope)
            case ast.Call():
                return self._called(node, scope)
            case ast.Subscript(value=base, slice=index):
                return _item(self._value(base, scope), self._value(index, scope), node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand, scope)
                return -value if isinstance(value, int | float) else _unknown(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self._value(operand, scope)
                return _unknown(node) if unknown_in(value) else not value
            case (
                ast.BinOp(left=left, op=op, right=right)
                | ast.Compare(left=left, ops=[op], comparators=[right])
            ):
                return _combined(op, self._value(left, scope), self._value(right, scope), node)
            case ast.BoolOp(op=op, values=[*first, last]):
                for operand in first:
                    value = self._value(operand, scope)
                    if unknown_in(value):
                        return self._forget([node], scope)
                    if bool(value) == isinstance(op, ast.Or):
                        return value
                return self._value(last, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self._value(test, scope)
                if unknown_in(truth):
                    return self._forget([body, orelse], scope, test)
                return self._value(body if truth else orelse, scope)
        return self._forget([node], scope)

    def _dict(
        self, pairs: Iterable[tuple[ast.expr | None, ast.expr]], scope: Scope
    ) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for key, node in pairs:
            value = self._value(node, scope)
            if key is None and isinstance(value, dict):  # **other
                items |= value
            elif key is not None and _is_key(name := self._value(key, scope)):
                items[name] = value
            else:  # any key, also one that is there already
                _note_change(items, node)
        return items

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        function: Any = None
        receiver, method = None, getattr(node.func, "attr", "")
        if isinstance(node.func, ast.Attribute):
            receiver = self._value(node.func.value, scope)
        if receiver is None or isinstance(receiver, Symbol):
            function = self._value(node.func, scope)
        positional = [self._value(argument, scope) for argument in node.args]
        words = [ast.Constant(word.arg) if word.arg else None for word in node.keywords]
        values = [word.value for word in node.keywords]
        keywords = self._dict(zip(words, values, strict=True), scope)
        match function or receiver, positional:
            case Function() as own, _ if not _has_star(node.args) and "**" not in keywords:
                return self._call(own, positional, keywords)
            case Symbol("dict"), []:
                return keywords
            case Symbol("getattr"), [Built() as owner, str() as name, *_]:
                return owner.attribute(name, node)
            case Symbol(name), [Symbol() as symbol, *others] if name in self.wrappers:
                return Built.of(symbol, node, others, keywords)
            case Symbol() as symbol, _ if not _is_reader(symbol) and symbol.name not in _CHANGERS:
                return Built.of(symbol, node, positional, keywords)
            case Built(), _ if method:
                return Built.of(Symbol(method), node, positional, keywords, receiver)
            case str() as text, [] if method == "lower":
                return text.lower()
            case list() as items, [item] if method == "append" and len(items) < _MAX_LENGTH:
                return items.append(item)
            case list() as items, [list() as more] if method == "extend":
                if len(items) + len(more) < _MAX_LENGTH:
                    return items.extend(more)
        return self._forget([node], scope)

    def _call(self, function: Function, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """Return the value of a function of the file."""
        if self.calls >= _MAX_CALLS:
            raise TooLong
        name, arguments, parameters = function.node.name, function.node.args, function.parameters
        in_order = function.positional
        names: dict[str, Any] = {
            each: Unknown(f"the parameter {each} of {name}", "which has no value")
            for each in parameters
        }
        names |= function.defaults | dict(zip(in_order, positional, strict=False))
        names |= {each: keywords[each] for each in parameters if each in keywords}
        if arguments.vararg:
            names[arguments.vararg.arg] = tuple(positional[len(in_order) :])
        if arguments.kwarg:
            others = {each: keywords[each] for each in keywords if each not in parameters}
            names[arguments.kwarg.arg] = others
        self.calls += 1
        try:
            self._run(function.node.body, function.scope.new_child(names))
        except _Returned as returned:
            return returned.value
        finally:
            self.calls -= 1
        return None


def _imports(statement: ast.Import | ast.ImportFrom) -> dict[str, Symbol]:
    """Return the symbols that an import defines, by their names in the file."""
    if isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        return {
            each.asname or each.name: Symbol(f"{module}.{each.name}") for each in statement.names
        }
    packages = {each.name.partition(".")[0] for each in statement.names if not each.asname}
    symbols = {package: Symbol(package) for package in packages}
    return symbols | {each.asname: Symbol(each.name) for each in statement.names if each.asname}


def _is_reader(symbol: Symbol) -> bool:
    """Whether a function only reads its arguments, and makes no object with them as fields."""
    is_builtin = hasattr(builtins, symbol.name) and symbol.name not in _CHANGERS
    return is_builtin or symbol.name in _COPIERS


def _attribute(owner: Any, name: str, node: ast.AST) -> Any:
    if isinstance(owner, Symbol):
        return Symbol(f"{owner.name}.{name}")
    if isinstance(owner, Built):
        return owner.attribute(name, node)
    return owner if isinstance(owner, Unknown) else _unknown(node)


def _item(owner: Any, key: Any, node: ast.AST) -> Any:
    with contextlib.suppress(LookupError, TypeError):
        if isinstance(owner, list | tuple | dict) and _is_key(key):
            return owner[key]
    return _unknown(node, owner)


def _combined(op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
    """Return the result of an operator on plain values, lists and dicts."""
    is_data = not isinstance(left, Built | Function) and not isinstance(right, Built | Function)
    is_sequence = isinstance(left, list | tuple | str), isinstance(right, list | tuple | str)
    match op:
        case ast.Is() | ast.IsNot():
            is_read = right is None or isinstance(right, bool)
        case ast.Mult() if isinstance(left, list) and isinstance(right, int):
            is_read = len(left) * right <= _MAX_LENGTH
        case ast.Mult() | ast.Mod():
            is_read = is_data and not any(is_sequence)
        case _:
            is_read = is_data
    if is_read and type(op) in _OPERATORS and not unknown_in((left, right)):
        with contextlib.suppress(TypeError, ArithmeticError):
            value = _OPERATORS[type(op)](left, right)
            if _is_short(value):
                return value
    return _unknown(node, (left, right))


def _unknown(node: ast.AST, value: Any = None) -> Unknown:
    """Return what an expression is that is not evaluated, but may be a value or a part of it."""
    return Unknown(_words(node), "which is not evaluated", objects_of(value))


def _words(node: ast.AST) -> str:
    """Return an expression, or the first line of a statement."""
    try:
        text = ast.unparse(node)
    except ValueError:  # a hexadecimal number of more digits than Python writes as decimal ones
        text = "a number of too many digits"
    return text.partition("\n")[0].removesuffix(":")[:_MAX_CHARACTERS]


def _has_star(items: Iterable[ast.expr]) -> bool:
    return any(isinstance(item, ast.Starred) for item in items)


def _is_key(value: Any) -> bool:
    """Whether a value can be a key: a plain one, or a tuple of plain ones."""
    return all(isinstance(each, _PLAIN) for each in (value if type(value) is tuple else [value]))


def _is_short(value: Any) -> bool:
    """Whether a value is small enough to be used further."""
    if isinstance(value, int | float):
        return abs(value) < _MAX_NUMBER
    return not isinstance(value, list | tuple | str) or len(value) <= _MAX_LENGTH


def _note_change(value: Any, node: ast.AST, added: Any = None) -> None:
    """Note on a value, or on all that an unknown value may be, that a node may change it.

    Lists and dicts have unknown items then: their own, or those that the node adds.
    """
    for each in objects_of(value):
        if isinstance(each, Built):
            function = getattr(node, "func", node)
            name = function.attr if isinstance(function, ast.Attribute) else _words(function)
            each.changes[name] = node
        elif isinstance(each, list):
            each[:] = [_unknown(node, (added, *each))]
        else:
            each.update(dict.fromkeys((*each, "**"), _unknown(node, (added, *each.values()))))
