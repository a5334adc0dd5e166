"""Evaluate integer formulas of + - * / % and parentheses as bash does, or not at all."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(\d{1,18})(?!\w)|([A-Za-z_]\w*)|([-+*/%()]))", re.ASCII)
_MAX_DEPTH = 30


def _divided(dividend: int, divisor: int) -> int:
    """Divide towards zero, as C does."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_OPERATORS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"+": operator.add, "-": operator.sub},
    {
        "*": operator.mul,
        "/": _divided,
        "%": lambda dividend, divisor: dividend - divisor * _divided(dividend, divisor),
    },
)
"""Operators from the lowest precedence to the highest."""


def evaluate(formula: str, value_of: Callable[[str], int | None]) -> int | None:
    """Return the value of a formula, or None if it has anything else than supported operators.

    Args:
        formula: the text between $(( and )).
        value_of: returns the value of a variable, or None if it is unknown.
    """
    tokens: list[str | int] = []
    at, formula = 0, formula.rstrip()
    if "++" in formula or "--" in formula:
        return None
    while at < len(formula):
        token = _TOKEN.match(formula, at)
        # Bash reads 010 as octal.
        if not token or (token[1] and token[1] != "0" and token[1].startswith("0")):
            return None
        value = value_of(token[2]) if token[2] else int(token[1]) if token[1] else token[3]
        if value is None:
            return None
        tokens.append(value)
        at = token.end()
    try:
        value, rest = _binary(tokens, 0, 0)
    except (_Unsupported, ZeroDivisionError):
        return None
    return value if rest == len(tokens) else None


class _Unsupported(Exception):
    pass


def _binary(tokens: list[str | int], at: int, depth: int, level: int = 0) -> tuple[int, int]:
    """Evaluate operators of at least one level; return the value and the position after it."""
    if level == len(_OPERATORS):
        return _unary(tokens, at, depth)
    value, at = _binary(tokens, at, depth, level + 1)
    while at < len(tokens) and (apply := _OPERATORS[level].get(str(tokens[at]))):
        other, at = _binary(tokens, at + 1, depth, level + 1)
        # Integers of bash have 64 bits and wrap around.
        value = (apply(value, other) + 2**63) % 2**64 - 2**63
    return value, at


def _unary(tokens: list[str | int], at: int, depth: int) -> tuple[int, int]:
    sign = 1
    while at < len(tokens) and tokens[at] in ("+", "-"):
        sign = -sign if tokens[at] == "-" else sign
        at += 1
    if at < len(tokens) and isinstance(token := tokens[at], int):
        return sign * token, at + 1
    if at >= len(tokens) or tokens[at] != "(" or depth > _MAX_DEPTH:
        raise _Unsupported
    value, at = _binary(tokens, at + 1, depth + 1)
    if at >= len(tokens) or tokens[at] != ")":
        raise _Unsupported
    return sign * value, at + 1
