"""Constraints: expressions over a scenario's fields that every point of a sweep must satisfy.

An expression is parsed with Python's own parser. Only arithmetic, comparisons, and/or/not, min and
max are accepted; every other node of the syntax tree (calls, subscripts, lambdas) is refused.
"""

from __future__ import annotations

import ast
import functools
import json
import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simtrain.base.strict_yaml.document import dotted
from simtrain.scenario import Scenario
from simtrain.scenario.schema import STACK_DEFAULTS
from simtrain.studies.sweep.fields import field_paths

Number = int | float
Value = Number | str | None
Evaluate = Callable[[Scenario], Any]

_MAX_LENGTH = 500
_MAX_DEPTH = 50
# Above any real quantity; refuses 9 ** 9 ** 9 before it fills the memory.
_LARGEST = 1e30
_MAX_EXPONENT = 100

_DERIVED = ("num_gpus", "num_microbatches")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_DECISIONS: dict[type[ast.boolop], Callable[..., bool]] = {ast.And: all, ast.Or: any}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}
_WORDS = {"true": True, "false": False, "null": None}


class ConstraintError(ValueError):
    """An invalid constraint, with the error code, the remedy and the offset in the expression."""

    def __init__(self, code: str, message: str, fix: str, offset: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix
        self.offset = offset


@functools.cache
def _attributes() -> Mapping[str, str]:
    """Map each name that a constraint may use to the scenario attribute that it reads.

    A field can be named without its section; the first section that has the field wins
    (`num_layers` is `model.num_layers`, `pipeline` is `parallelism.pipeline`). `recompute` reads
    the strategy, as in scenario files.
    """
    names: dict[str, str] = {"recompute": "recompute.strategy"}
    sections = {path[0] for path in field_paths() if len(path) > 1}
    for path in field_paths():
        if path == ("hardware",) or (len(path) == 1 and path[0] in sections):
            continue
        name = _spelled(dotted(path))
        names[name] = name
        names.setdefault(_spelled(str(path[-1])), name)
    return names | {name: name for name in _DERIVED}


# `global` is a Python keyword: append an underscore, as in the attribute's name.
_KEYWORD_FIELDS = "|".join(
    sorted({str(path[-1]) for path in field_paths() if keyword.iskeyword(str(path[-1]))})
)
_KEYWORD = re.compile(rf"\b({_KEYWORD_FIELDS})\b")


def _spelled(text: str) -> str:
    return _KEYWORD.sub(r"\1_", text)


def known_names(constants: Mapping[str, Number]) -> list[str]:
    """Names that a constraint may use: constants, and fields without their section."""
    short = [name for name in _attributes() if "." not in name]
    return [*constants, *(name.rstrip("_") for name in short if name not in constants)]


def is_field(name: str) -> bool:
    """Whether `name` already means a field, word or function, so that no constant may use it."""
    return name in {*_attributes(), *_WORDS, *_FUNCTIONS} - {*_DERIVED} or keyword.iskeyword(name)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A parsed constraint, and the names that it uses."""

    names: frozenset[str]
    evaluate: Evaluate

    def holds(self, scenario: Scenario) -> bool:
        """Whether the scenario satisfies the constraint.

        Raises:
            ConstraintError: it cannot be evaluated for this scenario, or is not a condition.
        """
        try:
            value = self.evaluate(scenario)
        except (ArithmeticError, TypeError, ValueError) as error:
            fix = "write a constraint that can be evaluated at every point of the grid"
            raise ConstraintError("E813", f"cannot be evaluated: {error}", fix) from error
        if not isinstance(value, bool):
            fix = "write a comparison: tensor * pipeline * data == num_gpus"
            raise ConstraintError("E813", f"is {_written(value)}, neither true nor false", fix)
        return value


def read_constraint(text: str, constants: Mapping[str, Number]) -> Constraint:
    """Parse an expression.

    Raises:
        ConstraintError: it is not an expression, uses something that is not allowed, or names
            something that is neither a constant nor a field.
    """
    spelled = _spelled(text.strip())
    if len(spelled) > _MAX_LENGTH:
        fix = "split it into several constraints; all of them must hold"
        raise ConstraintError("E810", f"is longer than {_MAX_LENGTH} characters", fix)
    try:
        tree = ast.parse(spelled, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        offset = (getattr(error, "offset", None) or 1) - 1
        words = getattr(error, "msg", None) or str(error)
        fix = "write a comparison such as tensor * pipeline * data == 64"
        raise ConstraintError(
            "E810", f"cannot be read: {words}", fix, _original(spelled, offset)
        ) from error
    reader = _Reader(spelled, constants, set())
    evaluate = reader.read(tree.body)
    return Constraint(frozenset(reader.names), evaluate)


def _original(spelled: str, offset: int) -> int:
    """Convert an offset in the spelled text to an offset in the user's text."""
    return offset - len(re.findall(rf"\b(?:{_KEYWORD_FIELDS})_", spelled[:offset]))


def _written(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: Value) -> Number:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{_written(value)} is not a number")
    return value


def _truth(value: Value) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{_written(value)} is neither true nor false")
    return value


def _bounded(value: Any) -> Number:
    if isinstance(value, complex) or not math.isfinite(value) or abs(value) > _LARGEST:
        raise ArithmeticError(f"a value above {_LARGEST:g}")
    result: Number = value
    return result


def _field(name: str, path: str) -> Evaluate:
    resolved = STACK_DEFAULTS[path].resolved if path in STACK_DEFAULTS else path
    read = operator.attrgetter(resolved)

    def evaluate(scenario: Scenario) -> Value:
        """Return the value of the field in a scenario."""
        try:
            value: Value = read(scenario)
        except AttributeError as error:
            # A section such as model.experts is None in a scenario that does not have it.
            raise TypeError(f"{name} is in a section that the scenario does not have") from error
        return value

    return evaluate


def _power(base: Number, exponent: Number) -> Any:
    if abs(exponent) > _MAX_EXPONENT:
        raise ArithmeticError(f"the exponent {exponent} is above {_MAX_EXPONENT}")
    return base**exponent


def _compared(op: ast.cmpop, left: Value, right: Value) -> bool:
    if not isinstance(op, ast.Eq | ast.NotEq):
        left, right = _number(left), _number(right)
    elif isinstance(left, str) != isinstance(right, str) and None not in (left, right):
        raise TypeError(f"{_written(left)} and {_written(right)} are never equal")
    return _COMPARISONS[type(op)](left, right)


_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: lambda value: not _truth(value),
    ast.USub: lambda value: -_number(value),
    ast.UAdd: lambda value: +_number(value),
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


@dataclass
class _Reader:
    """Compiles a syntax tree into a function of a scenario."""

    text: str
    constants: Mapping[str, Number]
    names: set[str]

    def read(self, node: ast.expr, depth: int = 0) -> Evaluate:
        """Return a function that evaluates an expression for a scenario."""
        if depth > _MAX_DEPTH:
            fix = "split it into several constraints; all of them must hold"
            raise self.refuse(node, f"is nested more than {_MAX_DEPTH} levels deep", fix)
        below = depth + 1
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                if not isinstance(value, str) and not abs(value) <= _LARGEST:
                    message = f"has a number above {_LARGEST:g}"
                    raise self.refuse(node, message, "write a smaller number")
                return lambda scenario: value
            case ast.Name() | ast.Attribute():
                return self.name(node)
            case ast.BoolOp(op, values):
                decide, parts = _DECISIONS[type(op)], [self.read(value, below) for value in values]
                return lambda scenario: decide(_truth(part(scenario)) for part in parts)
            case ast.UnaryOp(op, operand) if type(op) in _UNARY:
                change, inner = _UNARY[type(op)], self.read(operand, below)
                return lambda scenario: change(inner(scenario))
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                compute = _ARITHMETIC[type(op)]
                first, second = self.read(left, below), self.read(right, below)
                return lambda scenario: _bounded(
                    compute(_number(first(scenario)), _number(second(scenario)))
                )
            case ast.Compare(left, ops, right) if all(type(op) in _COMPARISONS for op in ops):
                return _comparisons(ops, [self.read(operand, below) for operand in [left, *right]])
            case ast.Call(ast.Name(id), args, []) if id in _FUNCTIONS and len(args) > 1:
                function, numbers = (
                    _FUNCTIONS[id],
                    [self.read(argument, below) for argument in args],
                )
                return lambda scenario: function(*(_number(number(scenario)) for number in numbers))
        fix = "use numbers, names, + - * / // % **, comparisons, and, or, not, min(a, b), max(a, b)"
        raise self.refuse(node, f'has "{ast.unparse(node)}", which is not allowed', fix)

    def name(self, node: ast.Name | ast.Attribute) -> Evaluate:
        """Return a function for the value of a constant, a word or a field."""
        name, values = ast.unparse(node), {**_WORDS, **self.constants}
        self.names.add(name)
        if name in values:
            return lambda scenario: values[name]
        if name in _attributes():
            return _field(name, _attributes()[name])
        message = f'names "{name}", which is neither a constant nor a field'
        fix = f"the names here are {', '.join(known_names(self.constants))}"
        raise self.refuse(node, message, fix, "E812")

    def refuse(self, node: ast.expr, message: str, fix: str, code: str = "E811") -> ConstraintError:
        """Build the error of an expression, with its place in the constraint."""
        # Python counts col_offset in UTF-8 bytes.
        offset = len(self.text.encode()[: node.col_offset].decode())
        return ConstraintError(code, message, fix, _original(self.text, offset))


def _comparisons(ops: list[ast.cmpop], parts: list[Evaluate]) -> Evaluate:
    """Return a function for a chain of comparisons."""

    def evaluate(scenario: Scenario) -> bool:
        values = [part(scenario) for part in parts]
        pairs = zip(ops, values, values[1:], strict=False)
        return all(_compared(op, left, right) for op, left, right in pairs)

    return evaluate
