"""Read the configs that a Python file builds, as text: nothing is executed.

Read are assignments, functions of the file, conditions on known values, literals, arithmetic, and
calls: that of another file's class or function makes an object with its arguments as fields. Any
other expression is unknown. Another statement of a function, and an expression that may change an
object, are an error, so that no unknown value is such an object.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from simtrain.errors import InputError, Location, did_you_mean

MOST_BYTES = 1 << 19
"""Of a file; the longest of torchtitan's own has a tenth of it."""
_MOST_STEPS, _MOST_CALLS, _MOST_ITEMS, _MOST_NAMES = 500_000, 30, 10_000, 40
_MOST_NUMBER = 1 << 63
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
}
_COUNTING = {"len", "int", "float", "str", "bool", "isinstance", "print"}
"""Functions that keep and return no part of their arguments; what others return is an object."""
_NOT_READ = {
    *("copy.copy", "copy.deepcopy", "dataclasses.replace", "setattr", "delattr", "exec", "eval"),
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
        changes: functions of other files that got the object and may change it, with their call.
    """

    symbol: Symbol
    node: ast.AST
    positional: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, ast.AST] = field(default_factory=dict)
    children: dict[str, Built] = field(default_factory=dict)
    changes: dict[str, ast.AST] = field(default_factory=dict)

    @property
    def is_object(self) -> bool:
        return self.symbol.last.lstrip("_")[:1].isupper()

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, ast.AST]]:
        """Yield the path, value and expression of each field, after those of objects in it.

        A function that may change an object is a field with the value "called".
        """
        for name, value in self.fields.items():
            if isinstance(value, Built):
                yield from value.leaves((*path, name))
            yield (*path, name), value, self.places[name]
        for name, child in self.children.items():
            yield from child.leaves((*path, name))
        for name, node in self.changes.items():
            yield (*path, name), "called", node


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

    Raises:
        InputError: wrong syntax (E875), statements that are not read (E874), or too much to be
            followed (E879). So does `config`.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file, self.lines = file, text.split("\n")
        if len(text) > MOST_BYTES:
            raise self._too_large(f"it has more than {MOST_BYTES:,} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes in texts, which are no errors
                self.tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            message = f"invalid Python: {getattr(error, 'msg', 'a character that is not allowed')}"
            raise InputError.of("E875", message, self.place(error), "correct it") from None
        except (RecursionError, MemoryError):
            raise self._too_large("its expressions are nested too deeply") from None
        scope = self._evaluated("the file", lambda reader: reader.scope)
        public = {name: value for name, value in scope.items() if not name.startswith("_")}
        self.names = [
            name
            for name, value in public.items()
            if isinstance(value, Built)
            or (isinstance(value, _Function) and {*value.parameters} <= value.defaults.keys())
        ]
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
        if name in self.names:
            value = self._value(str(name))
            if isinstance(value, Built) and is_config(value):
                return str(name), value
            if unknown := unknown_in(value):
                fix = "import the file with that function, or write the config in this file"
                message = f"{name} is {unknown.text}, {unknown.reason}"
                raise InputError.of("E874", message, Location(self.file), fix)
        configs, refused = dict[str, Built](), list[InputError]()
        for each in self.names:
            try:
                if isinstance(value := self._value(each), Built) and is_config(value):
                    configs[each] = value
            except InputError as error:
                refused.append(error)
        if name is None and len(configs) == 1:
            return next(iter(configs.items()))
        if refused and not configs:
            raise refused[0]
        listed, more = ", ".join([*configs][:_MOST_NAMES]), len(configs) - _MOST_NAMES
        listed += f" and {more:,} more" if more > 0 else ""
        message = f"{len(configs)} configs: {listed}" if configs else "no configs"
        fix = "import a file with a function that returns a config"
        if configs:
            fix = f"choose one: --config {next(iter(configs))} (config= in Python)"
        if name is not None:
            message = f"{name} is no config of this file"
            fix = did_you_mean(name[:100], [*configs]) + fix
        raise InputError.of("E875", message, Location(self.file), fix)

    def place(self, node: ast.AST | Exception) -> Location:
        """Return the position of an expression or of an error in the syntax."""
        number = getattr(node, "lineno", None) or 1
        column = getattr(node, "offset", None) or getattr(node, "col_offset", 0) + 1
        line = self.lines[number - 1] if number <= len(self.lines) else ""
        return Location(self.file, number, column, line[:200])

    def _value(self, name: str) -> Any:
        """Return the value of a name in a reading of its own, as configs may change others."""

        def read(reader: _Reader) -> Any:
            value = reader.scope.get(name)
            value = reader.call(value, [], {}) if isinstance(value, _Function) else value
            if isinstance(value, Built):
                for number, _ in enumerate(value.leaves()):
                    if number > _MOST_ITEMS:
                        raise _TooLong
            return value

        return self._evaluated(name, read)

    def _evaluated(self, name: str, read: Callable[[_Reader], Any]) -> Any:
        """Run the file's statements, and return what is read after them."""
        reader = _Reader()
        try:
            with suppress(_Returned):  # ast.parse accepts a return outside of a function
                reader.run(self.tree.body, reader.scope)
            return read(reader)
        except _NotRead as error:
            (node,) = error.args
            message = f"{name} depends on {_words(node)}, which is not evaluated"
            fix = "write it with literals and calls"
            raise InputError.of("E874", message, self.place(node), fix) from None
        except (_TooLong, RecursionError, MemoryError):
            raise self._too_large(f"{name} takes too many steps, or contains itself") from None

    def _too_large(self, message: str) -> InputError:
        fix = "import a shorter file with the config alone"
        return InputError.of("E879", message, Location(self.file), fix)


class _Reader:
    """The names of a file, and the values of its functions."""

    def __init__(self) -> None:
        self.steps, self.calls = 0, 0
        self.scope: _Scope = ChainMap()

    def call(self, function: _Function, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """Return the value of a function of the file."""
        parts, parameters = function.node.args, function.parameters
        if self.calls == _MOST_CALLS:
            raise _TooLong
        if parts.vararg or parts.kwarg:
            raise _NotRead(function.node)
        missing = Unknown(function.node.name, "which needs more arguments")
        names = dict.fromkeys(parameters, missing) | function.defaults
        names |= dict(zip(parameters, positional, strict=False)) | keywords
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
            match statement:
                case ast.FunctionDef(name=name, args=parts):
                    scope[name] = _Function(statement, self._defaults(parts, scope), scope)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    start = f"{getattr(statement, 'module', '')}." * isinstance(
                        statement, ast.ImportFrom
                    )
                    for each in names:
                        name = each.asname or each.name
                        is_package = not (start or each.asname)
                        name = name.partition(".")[0] if is_package else name
                        scope[name] = Symbol(name if is_package else start + each.name)
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
                        _note_changes(made, call)
                case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.AnnAssign():
                    pass
                case _:
                    self._skip(statement, scope)

    def _defaults(self, parts: ast.arguments, scope: _Scope) -> dict[str, Any]:
        names = [*parts.posonlyargs, *parts.args][-len(parts.defaults) :] if parts.defaults else []
        pairs = zip([*names, *parts.kwonlyargs], [*parts.defaults, *parts.kw_defaults], strict=True)
        return {each.arg: self._value(node, scope) for each, node in pairs if node}

    def _assign(self, target: ast.expr, value: Any, scope: _Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=base, attr=name) if isinstance(
                owner := self._value(base, scope), Built
            ):
                owner.children.pop(name, None)
                owner.fields[name], owner.places[name] = value, target
            case _:
                raise _NotRead(target)

    def _skip(self, statement: ast.stmt, scope: _Scope) -> None:
        """Pass over a statement of the module that changes no object; what it assigns is unknown.

        Raises:
            _NotRead: the statement is in a function, or may change an object.
        """
        if self.calls:
            raise _NotRead(statement)
        self._unread(statement, scope)
        for node in ast.walk(statement):
            match node:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                    scope[name] = Unknown(_words(statement))
                case ast.ImportFrom() | ast.Import() if node is not statement:
                    self.run([node], scope)
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    scope[name] = Symbol(name)

    def _unread(self, node: ast.AST, scope: _Scope) -> Unknown:
        """Return the unknown value of an expression.

        Raises:
            _NotRead: it has an object or list of the file, which it may return or change.
        """
        for part in ast.walk(node):
            is_assigned = isinstance(part, ast.NamedExpr)
            value = scope.get(part.id) if isinstance(part, ast.Name) else None
            if is_assigned or isinstance(value, Built | _Function | list | dict | tuple):
                raise _NotRead(node)
        return Unknown(_words(node))

    # Expressions.

    def _value(self, node: ast.expr, scope: _Scope) -> Any:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise _TooLong
        match node:
            case ast.Constant(value=int() | float() | str() | None):
                return node.value
            case ast.Name(id=name):
                return scope.get(name, Symbol(name))
            case ast.Attribute(value=base, attr=name):
                owner = self._value(base, scope)
                if isinstance(owner, Symbol):
                    return Symbol(f"{owner.name}.{name}")
                if not isinstance(owner, Built):
                    return Unknown(_words(node))
                # A field, or an object for the default that the file does not contain.
                default = Built(Symbol(""), node)
                fields = owner.fields if name in owner.fields else owner.children
                return fields.setdefault(name, default)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._value(item, scope) for item in items]
            case ast.Dict(keys=keys, values=values):
                words = [key.value for key in keys if isinstance(key, ast.Constant)]
                if len(words) < len(values):
                    return self._unread(node, scope)
                return dict(zip(words, [self._value(each, scope) for each in values], strict=True))
            case ast.Call():
                return self._called(node, scope)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand, scope)
                return -value if isinstance(value, int | float) else self._unread(node, scope)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self._value(operand, scope)
                return self._unread(node, scope) if unknown_in(value) else not value
            case (
                ast.BinOp(left=left, op=op, right=right)
                | ast.Compare(left=left, ops=[op], comparators=[right])
            ) if type(op) in _OPERATORS:
                return self._combined(op, left, right, node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self._value(test, scope)
                if not unknown_in(truth):
                    return self._value(body if truth else orelse, scope)
                self._unread(body, scope)
                self._unread(orelse, scope)
                return Unknown(_words(test), "a condition that is not known")
        return self._unread(node, scope)

    def _combined(
        self, op: ast.AST, left: ast.expr, right: ast.expr, node: ast.expr, scope: _Scope
    ) -> Any:
        """Return the result of an operator on plain values and lists of them."""
        sides = [self._value(left, scope), self._value(right, scope)]
        is_identity = isinstance(op, ast.Is | ast.IsNot)
        sizes = [len(side) if isinstance(side, list | str) else 1 for side in sides]
        factors = [abs(side) for side in sides if isinstance(side, int | float)]
        is_short = all(size <= 1 for size in sizes) or max([*sizes, *factors]) <= _MOST_ITEMS
        is_text = isinstance(op, ast.Mult | ast.Mod) and any(isinstance(s, str) for s in sides)
        is_plain = is_identity or not any(isinstance(side, Built | _Function) for side in sides)
        if is_plain and is_short and not is_text and not unknown_in(sides):
            with suppress(TypeError, ArithmeticError):
                value = _OPERATORS[type(op)](*sides)
                if not isinstance(value, int) or abs(value) < _MOST_NUMBER:
                    return value
        return self._unread(node, scope)

    def _called(self, node: ast.Call, scope: _Scope) -> Any:
        called: ast.expr = node.func
        method = ""
        if isinstance(called, ast.Attribute):
            method, called = called.attr, called.value
        function = self._value(called, scope)
        if method and isinstance(function, Symbol):
            function, method = Symbol(f"{function.name}.{method}"), ""
        positional = [self._value(argument, scope) for argument in node.args]
        if any(word.arg is None for word in node.keywords):
            raise _NotRead(node)
        words = {str(word.arg): word.value for word in node.keywords}
        keywords = {name: self._value(value, scope) for name, value in words.items()}
        match function:
            case Built() if method:
                function.changes[method] = node
                return Built(Symbol(method), node, positional, keywords, dict(words))
            case _Function() if not method:
                return self.call(function, positional, keywords)
            case Symbol(name) if name in _COUNTING:
                return Unknown(_words(node))
            case Symbol(name) if name not in _NOT_READ:
                return Built(function, node, positional, keywords, dict(words))
        raise _NotRead(node)


def unknown_in(value: Any) -> Unknown | None:
    """Return the unknown part of a value, or None if all of it is in the file."""
    match value:
        case Unknown():
            return value
        case Symbol():
            return Unknown(value.name, "defined in another file")
        case Built() if not value.is_object:
            name = f"{value.symbol.last}()" if value.symbol.name else "a default"
            return Unknown(name, "in another file")
        case dict():
            return next(filter(None, map(unknown_in, value.values())), None)
        case list():
            return next(filter(None, map(unknown_in, value)), None)
    return None


def _note_changes(made: Built, call: ast.Call) -> None:
    """Note on objects that a function of another file may change them.

    Raises:
        _NotRead: it may change a list or a dict.
    """
    for value in (*made.positional, *made.fields.values()):
        if isinstance(value, list | dict):
            raise _NotRead(call)
        if isinstance(value, Built):
            value.changes[_words(call.func).rpartition(".")[2]] = call


def _words(node: ast.AST) -> str:
    """Return an expression, or the first line of a statement."""
    try:
        text = ast.unparse(node)
    except ValueError:  # a hexadecimal number of more digits than Python writes as decimal ones
        text = "a number of too many digits"
    return text.partition("\n")[0].removesuffix(":")[:100]
