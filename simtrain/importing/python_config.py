"""Read the configs that a Python file builds, as text: nothing is executed.

Read are assignments, functions of the file, conditions on known values, literals, arithmetic, and
calls: that of another file's class or function makes an object with its arguments as fields. Any
other expression is unknown. A statement or expression that may change an object of the file in an
unknown way is an error, so that no unknown value is such an object.
"""

from __future__ import annotations

import ast
import builtins
import operator
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from simtrain.errors import InputError, Location, did_you_mean

MOST_BYTES = 1 << 19
"""Of a file; the longest of the tools' own has a tenth of it."""
_MOST_STEPS = 500_000
"""Of all readings of a file: one for each config in it."""
_MOST_CALLS, _DEEPEST, _MOST_PARTS, _MOST_ITEMS, _MOST_NUMBER = 30, 30, 100_000, 10_000, 10**18
_MOST_NAMES, _MOST_CHARACTERS = 40, 100
_PLAIN = int | float | str | bool | None
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_COUNTING = {"len", "int", "float", "str", "bool", "isinstance", "hasattr", "print"}
"""Functions that keep and return no part of their arguments; what others return is an object."""
_NOT_READ = {
    *("copy.copy", "copy.deepcopy", "dataclasses.replace", "typing.cast"),
    *("setattr", "delattr", "exec", "eval"),
}

_Scope = ChainMap[str, Any]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that the file does not determine: what it depends on, and why that is unknown."""

    text: str
    reason: str = "which is not evaluated"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that the file imports or does not define, such as torchtitan.trainer.Trainer."""

    name: str

    @property
    def last(self) -> str:
        return self.name.removesuffix(".Config").rpartition(".")[2]


@dataclass(slots=True, eq=False)
class Built:
    """An object that a call of a symbol makes.

    Args:
        symbol: what is called; without a name, the object is a default of another file.
        positional: the arguments without a name.
        fields: the arguments with a name, and attributes that are assigned later.
        places: the expression of each field.
        children: defaults of attributes that are read before they are assigned.
        receiver: the object whose method is called.
        changes: functions of other files that got the object and may change it, with their call.
    """

    symbol: Symbol
    node: ast.AST
    positional: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, ast.AST] = field(default_factory=dict)
    children: dict[str, Built] = field(default_factory=dict)
    receiver: Any = None
    changes: dict[str, ast.AST] = field(default_factory=dict)

    @property
    def is_object(self) -> bool:
        return self.symbol.last.lstrip("_")[:1].isupper()

    def attribute(self, name: str, node: ast.AST) -> Any:
        """Return a field, or an object for the default that the file does not contain."""
        if name in self.fields:
            return self.fields[name]
        return self.children.setdefault(name, Built(Symbol(""), node))

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, ast.AST]]:
        """Yield the path, value and expression of each field, after those of objects in it."""
        for name, value in self.fields.items():
            if isinstance(value, Built):
                yield from value.leaves((*path, name))
            yield (*path, name), value, self.places[name]
        for name, child in self.children.items():
            yield from child.leaves((*path, name))

    def all_changes(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ast.AST]]:
        """Yield the path and call of each function of another file that may change an object."""
        for name, node in self.changes.items():
            yield (*path, name), node
        for name, value in (*self.fields.items(), *self.children.items()):
            if isinstance(value, Built):
                yield from value.all_changes((*path, name))


@dataclass(frozen=True, slots=True, eq=False)
class _Function:
    """A function of the file, the values of its defaults, and the names around it."""

    node: ast.FunctionDef
    defaults: dict[str, Any]
    scope: _Scope

    @property
    def parameters(self) -> list[str]:
        parts = self.node.args
        return [each.arg for each in (*parts.posonlyargs, *parts.args, *parts.kwonlyargs)]


class _NotRead(Exception):
    """A node may change objects of the file in an unknown way."""


class _TooLong(Exception):
    pass


class _Returned(Exception):
    pass


class PythonSource:
    """The configs of a Python file.

    Args:
        text: the file's text, which is parsed and never executed.
        file: its path.
        wrappers: symbols whose first argument is what they make, such as run.Config(Trainer, ...).

    Raises:
        InputError: wrong syntax (E875), statements that are not read (E874), or too much to be
            followed (E879). So does `config`.
    """

    def __init__(self, text: str, file: str, wrappers: Sequence[str] = ()) -> None:
        self.file, self.lines, self.wrappers, self.steps = file, text.split("\n"), wrappers, 0
        if len(text) > MOST_BYTES:
            raise self._too_large(f"it has more than {MOST_BYTES:,} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes in texts, which are no errors
                self.tree = ast.parse(text)
            scope = self._read().scope
        except (SyntaxError, ValueError) as error:
            message = f"invalid Python: {getattr(error, 'msg', 'a character that is not allowed')}"
            raise InputError.of("E875", message, self.place(error), "correct it") from None
        except (RecursionError, MemoryError, _TooLong):
            raise self._too_large("its expressions or calls are nested too deeply") from None
        except _NotRead as error:
            raise self._not_read("the file", *error.args) from None
        public = {name: value for name, value in scope.items() if not name.startswith("_")}
        functions = [
            name
            for name, value in public.items()
            if isinstance(value, _Function) and {*value.parameters} <= value.defaults.keys()
        ]
        self.names = [*functions, *(name for name in public if isinstance(public[name], Built))]
        """The public functions without required parameters, and the public variables."""

    def config(self, name: str | None, is_config: Callable[[Built], bool]) -> tuple[str, Built]:
        """Return the name and object of a config.

        Args:
            name: the function or variable; None if the file has one config.
            is_config: whether an object is a config.

        Raises:
            InputError: there is no such config, or several and no name (E875); another file or a
                statement that is not read determines it (E874).
        """
        value = self._value(name) if name in self.names else None
        if name and isinstance(value, Built) and is_config(value):
            return name, value
        if name and isinstance(value, _NotRead):
            raise self._not_read(name, *value.args)
        if name and (unknown := unknown_in(value)):
            fix = "import the file with that function, or write the config in this file"
            message = f"{name} is {unknown.text}, {unknown.reason}"
            raise InputError.of("E874", message, Location(self.file), fix)
        values = {each: self._value(each) for each in self.names}
        configs = [each for each, v in values.items() if isinstance(v, Built) and is_config(v)]
        if name is None and len(configs) == 1:
            return configs[0], values[configs[0]]
        for each, value in values.items():
            if isinstance(value, _NotRead) and not configs:
                raise self._not_read(each, *value.args)
        more = len(configs) - _MOST_NAMES
        listed = ", ".join(configs[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
        message = f"{len(configs)} configs: {listed}" if configs else "no configs"
        fix = "import a file with a function that returns a config"
        if configs:
            fix = f"choose one: --config {configs[0]} (config= in Python)"
        if name is not None:
            message = f"{name} is no config of this file"
            fix = did_you_mean(name[:100], configs) + fix
        raise InputError.of("E875", message, Location(self.file), fix)

    def place(self, node: ast.AST | Exception) -> Location:
        """Return the position of an expression or of an error in the syntax."""
        number = getattr(node, "lineno", None) or 1
        column = getattr(node, "offset", None) or getattr(node, "col_offset", 0) + 1
        line = self.lines[number - 1] if number <= len(self.lines) else ""
        return Location(self.file, number, column, line[:200])

    def _read(self) -> _Reader:
        reader = _Reader(self.wrappers, self.steps)
        with suppress(_Returned):  # ast.parse accepts a return outside of a function
            reader.run(self.tree.body, reader.scope)
        return reader

    def _value(self, name: str) -> Any:
        """Return the value of a name in a reading of its own, as configs may change others."""
        try:
            reader = self._read()
            value = reader.scope.get(name)
            value = reader.call(value, [], {}) if isinstance(value, _Function) else value
            self.steps = reader.steps
            _check_size(value)
        except _NotRead as error:
            return error
        except (_TooLong, RecursionError, MemoryError):
            raise self._too_large(f"{name} takes too many steps, or contains itself") from None
        return value

    def _not_read(self, name: str, node: ast.AST) -> InputError:
        message = f"{name} depends on {_words(node)}, which is not evaluated"
        fix = "write it with literals and calls, or import the config that the tool prints"
        return InputError.of("E874", message, self.place(node), fix)

    def _too_large(self, message: str) -> InputError:
        fix = "import a shorter file with the config alone"
        return InputError.of("E879", message, Location(self.file), fix)


class _Reader:
    """The names of a file, and the values of its functions."""

    def __init__(self, wrappers: Sequence[str], steps: int) -> None:
        self.wrappers, self.steps, self.calls = wrappers, steps, 0
        self.scope: _Scope = ChainMap()

    def call(self, function: _Function, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """Return the value of a function of the file."""
        parts, parameters = function.node.args, function.parameters
        if self.calls == _MOST_CALLS:
            raise _TooLong
        if parts.vararg or "**" in keywords:
            raise _NotRead(function.node)
        missing = Unknown(function.node.name, "which needs more arguments")
        names = dict.fromkeys(parameters, missing) | function.defaults
        names |= dict(zip(parameters, positional, strict=False)) | keywords
        if parts.kwarg:
            others = {each: names.pop(each) for each in keywords if each not in parameters}
            names[parts.kwarg.arg] = others
        self.calls += 1
        try:
            self.run(function.node.body, function.scope.new_child(names))
        except _Returned as returned:
            return returned.args[0]
        finally:
            self.calls -= 1
        return None

    def run(self, statements: Sequence[ast.stmt], scope: _Scope) -> None:
        """Read statements."""
        for statement in statements:
            self._count()
            match statement:
                case ast.FunctionDef(name=name, args=parts):
                    scope[name] = _Function(statement, self._defaults(parts, scope), scope)
                case ast.ClassDef(name=name):
                    self._lose(statement, scope.new_child())
                    scope[name] = Symbol(name)
                case ast.Import() | ast.ImportFrom():
                    scope.update(_imports(statement))
                case ast.Assign(targets=targets, value=value):
                    result = self._value(value, scope)
                    for target in targets:
                        self._assign(target, result, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, self._value(value, scope), scope)
                case ast.Return(value=value):
                    raise _Returned(self._value(value, scope) if value else None)
                case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                    pass  # what the file does as a program
                case ast.If(test=test, body=body, orelse=orelse):
                    truth = self._value(test, scope)
                    if unknown_in(truth):
                        raise _NotRead(test)
                    self.run(body if truth else orelse, scope)
                case ast.Expr(value=ast.Call() as call):
                    made = self._value(call, scope)
                    if isinstance(made, Built) and made.node is call:
                        _note_change((made.positional, made.fields, made.receiver), call)
                case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.AnnAssign():
                    pass
                case ast.Assert(test=test):
                    self._value(test, scope)
                case _ if self.calls:
                    raise _NotRead(statement)
                case _:
                    self._lose(statement, scope)

    def _defaults(self, parts: ast.arguments, scope: _Scope) -> dict[str, Any]:
        names = [*parts.posonlyargs, *parts.args][-len(parts.defaults) :] if parts.defaults else []
        pairs = zip([*names, *parts.kwonlyargs], [*parts.defaults, *parts.kw_defaults], strict=True)
        return {each.arg: self._value(node, scope) for each, node in pairs if node}

    def _assign(self, target: ast.expr, value: Any, scope: _Scope) -> None:
        match target, value:
            case ast.Name(id=name), _:
                scope[name] = value
            case ast.Attribute(value=base, attr=name), _:
                owner = self._value(base, scope)
                if not isinstance(owner, Built):
                    raise _NotRead(target)
                owner.children.pop(name, None)
                owner.fields[name], owner.places[name] = value, target
            case ast.Tuple(elts=targets), list() | tuple() if len(targets) == len(value):
                for each, part in zip(targets, [*value], strict=True):
                    self._assign(each, part, scope)
            case ast.Tuple(elts=targets), Built():  # what a function of another file returns
                for each in targets:
                    self._assign(each, Built(Symbol(""), target), scope)
            case _:
                raise _NotRead(target)

    def _lose(self, node: ast.AST, scope: _Scope) -> Unknown:
        """Return the unknown value of an expression; names that a node assigns have it too."""
        lost = Unknown(_words(node))
        for part in ast.walk(node):
            self._count()
            match part:
                case ast.Name(id=name, ctx=context):
                    _unknown(node, [scope.get(name)])
                    if not isinstance(context, ast.Load):
                        scope[name] = lost
                case ast.Call(func=ast.Name(id=name)) if isinstance(scope.get(name), Unknown):
                    raise _NotRead(node)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    scope[name] = lost
                case ast.Import() | ast.ImportFrom():
                    scope.update(_imports(part))
                case ast.Global() | ast.Nonlocal():
                    raise _NotRead(node)
                case ast.Yield() | ast.YieldFrom() | ast.Await() if isinstance(node, ast.expr):
                    raise _NotRead(node)
        return lost

    def _count(self) -> None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise _TooLong

    # Expressions.

    def _value(self, node: ast.expr, scope: _Scope) -> Any:
        self._count()
        match node:
            case ast.Constant(value=value) if isinstance(value, _PLAIN) and _is_short(value):
                return value
            case ast.Name(id=name):
                return scope.get(name, Symbol(name))
            case ast.Attribute(value=base, attr=name):
                owner = self._value(base, scope)
                if isinstance(owner, Symbol):
                    return Symbol(f"{owner.name}.{name}")
                is_object = isinstance(owner, Built)
                return owner.attribute(name, node) if is_object else Unknown(_words(node))
            case ast.List(elts=items):
                return [self._value(item, scope) for item in items]
            case ast.Tuple(elts=items):
                return tuple(self._value(item, scope) for item in items)
            case ast.Dict(keys=keys, values=values):
                return self._dict(zip(keys, values, strict=True), scope)
            case ast.Starred():
                raise _NotRead(node)
            case ast.Call():
                return self._called(node, scope)
            case ast.Subscript(value=base, slice=index):
                owner, key = self._value(base, scope), self._value(index, scope)
                with suppress(LookupError, TypeError):
                    if not (isinstance(owner, list) and unknown_in(owner)):
                        return owner[key]
                return _unknown(node, owner)
            case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=operand):
                value = self._value(operand, scope)
                if isinstance(op, ast.USub) and isinstance(value, int | float):
                    return -value
                is_known = isinstance(op, ast.Not) and not unknown_in(value)
                return not value if is_known else Unknown(_words(node))
            case (
                ast.BinOp(left=left, op=op, right=right)
                | ast.Compare(left=left, ops=[op], comparators=[right])
            ):
                return _combined(op, self._value(left, scope), self._value(right, scope), node)
            case ast.BoolOp(op=op, values=[*first, last]):
                for number, operand in enumerate(first):
                    value = self._value(operand, scope)
                    if unknown_in(value):
                        for each in node.values[number + 1 :]:
                            self._lose(each, scope)
                        return Unknown(_words(node))
                    if bool(value) == isinstance(op, ast.Or):
                        return value
                return self._value(last, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self._value(test, scope)
                if not unknown_in(truth):
                    return self._value(body if truth else orelse, scope)
                self._lose(body, scope)
                self._lose(orelse, scope)
                return Unknown(_words(test), "a condition that is not known")
        return self._lose(node, scope)

    def _dict(
        self, pairs: Iterable[tuple[ast.expr | None, ast.expr]], scope: _Scope
    ) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for key, node in pairs:
            name = self._value(key, scope) if key else None
            value = self._value(node, scope)
            if key is None and isinstance(value, dict):  # **other
                items |= value
            elif key and _is_key(name):
                items[name] = value
            else:
                raise _NotRead(node)
        return items

    def _called(self, node: ast.Call, scope: _Scope) -> Any:
        called = node.func
        method = called.attr if isinstance(called, ast.Attribute) else ""
        function = self._value(called.value if isinstance(called, ast.Attribute) else called, scope)
        if method and isinstance(function, Symbol):
            function = Symbol(f"{function.name}.{method}")
        positional = [self._value(argument, scope) for argument in node.args]
        words = [
            (ast.Constant(word.arg) if word.arg else None, word.value) for word in node.keywords
        ]
        keywords = self._dict(words, scope)
        places: dict[str, ast.AST] = dict.fromkeys(keywords, node)
        places |= {word.arg: word.value for word in node.keywords if word.arg}
        match function, positional:
            case _Function(), _ if not method:
                return self.call(function, positional, keywords)
            case Symbol("getattr"), [Built() as owner, str() as name, *_]:
                return owner.attribute(name, node)
            case Symbol(name), _ if name in _COUNTING:
                return Unknown(_words(node))
            case Symbol(name), _ if name in _NOT_READ:
                pass
            case Symbol(name), _ if hasattr(builtins, name):
                return _unknown(node, *positional, *keywords.values())
            case Symbol(name), [Symbol() as symbol, *others] if name in self.wrappers:
                return Built(symbol, node, others, keywords, places)
            case Symbol(), _:
                return Built(function, node, positional, keywords, places)
            case Built(), _:
                return Built(Symbol(method), node, positional, keywords, places, receiver=function)
            case str(), [] if method == "lower":
                return function.lower()
            case list(), [item] if method == "append" and len(function) < _MOST_ITEMS:
                return function.append(item)
            case list(), [list() as more] if method == "extend" and len(more) < _MOST_ITEMS:
                return function.extend(more)
        raise _NotRead(node)


def unknown_in(value: Any) -> Unknown | None:
    """Return the unknown part of a value, or None if all of it is in the file."""
    for part in _parts(value):
        if isinstance(part, Unknown):
            return part
        if isinstance(part, Symbol):
            return Unknown(part.name, "defined in another file")
        if isinstance(part, Built) and not part.is_object:
            name = f"{part.symbol.last}()" if part.symbol.name else "a default"
            return Unknown(name, "in another file")
    return None


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value and the items of lists, tuples and dicts in it, each list once."""
    seen: set[int] = set()  # a file may put a list into many others, or into itself
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, list | tuple | dict):
            if id(part) in seen:
                continue
            seen.add(id(part))
            parts += reversed(_items(part))
        yield part


def _items(value: Any) -> list[Any]:
    """Return the items of a list, tuple or dict; none of another value."""
    if isinstance(value, dict):
        return [*value.values()]
    return [*value] if isinstance(value, list | tuple) else []


def _check_size(value: Any, depth: int = 0) -> int:
    """Return the number of parts of a value, of which each is counted wherever it is.

    Raises:
        _TooLong: it has too many, or contains itself.
    """
    if isinstance(value, Built):
        value = [*value.positional, *value.fields.values(), *value.children.values()]
    size = 1
    for part in _items(value):
        size += _check_size(part, depth + 1)
        if size > _MOST_PARTS or depth > _DEEPEST:
            raise _TooLong
    return size


def _imports(statement: ast.Import | ast.ImportFrom) -> dict[str, Symbol]:
    """Return the symbols that an import defines, by their names in the file."""
    if isinstance(statement, ast.ImportFrom):
        start = f"{statement.module or ''}."
        return {each.asname or each.name: Symbol(start + each.name) for each in statement.names}
    packages = [each.name.partition(".")[0] for each in statement.names if not each.asname]
    symbols = {package: Symbol(package) for package in packages}
    return symbols | {each.asname: Symbol(each.name) for each in statement.names if each.asname}


def _combined(op: ast.AST, left: Any, right: Any, node: ast.AST) -> Any:
    """Return the result of an operator on plain values, lists and dicts."""
    is_read = not any(isinstance(each, Built | _Function) for each in (left, right))
    if isinstance(op, ast.Is | ast.IsNot):
        is_read = right is None or isinstance(right, bool)
    elif isinstance(op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
        is_read = len(left) * right <= _MOST_ITEMS
    elif isinstance(op, ast.Mult | ast.Mod):
        is_read = isinstance(left, int | float) and isinstance(right, int | float)
    if is_read and type(op) in _OPERATORS and not unknown_in((left, right)):
        with suppress(TypeError, ArithmeticError):
            value = _OPERATORS[type(op)](left, right)
            if _is_short(value):
                return value
    return _unknown(node, left, right) if isinstance(op, ast.operator) else Unknown(_words(node))


def _unknown(node: ast.AST, *values: Any) -> Unknown:
    """Return an unknown part of values.

    Raises:
        _NotRead: the part may be an object, a list or a dict.
    """
    whole = [each for each in values if not isinstance(each, list | tuple | dict)]
    for each in (*whole, *(item for value in values for item in _items(value))):
        is_default = isinstance(each, Built) and not each.symbol.name
        if isinstance(each, Built | _Function | list | dict | tuple) and not is_default:
            raise _NotRead(node)
    return Unknown(_words(node))


def _words(node: ast.AST) -> str:
    """Return an expression, or the first line of a statement."""
    try:
        text = ast.unparse(node)
    except ValueError:  # a hexadecimal number of more digits than Python writes as decimal ones
        text = "a number of too many digits"
    return text.partition("\n")[0].removesuffix(":")[:_MOST_CHARACTERS]


def _note_change(value: Any, call: ast.Call) -> None:
    """Note on objects that a call may change them; the items of lists and dicts are unknown."""
    name = getattr(call.func, "attr", None) or _words(call.func)
    for part in _parts(value):
        if isinstance(part, Built):
            part.changes[name] = call
    for part in [*_parts(value)]:
        if isinstance(part, list):
            part[:] = [Unknown(_words(call))]
        elif isinstance(part, dict):
            part.update(dict.fromkeys((*part, "**"), Unknown(_words(call))))


def _is_key(value: Any) -> bool:
    return all(isinstance(each, _PLAIN) for each in (value if type(value) is tuple else [value]))


def _is_short(value: Any) -> bool:
    """Whether a value is small enough to be used further."""
    if isinstance(value, int | float):
        return abs(value) < _MOST_NUMBER
    return not isinstance(value, list | tuple | str) or len(value) <= _MOST_ITEMS
