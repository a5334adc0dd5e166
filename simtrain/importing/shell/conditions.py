"""Decide the tests of `[ ... ]` and `[[ ... ]]` from their words, or call them unknown.

Read are comparisons of texts, patterns and integers, -z and -n; in `[[`, also `&&`, `||` and `!`
without parentheses. All else, such as tests of files, is unknown.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
"""An integer that bash reads as Python does, unlike 010."""
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_JOINTS = ("||", "&&")


@dataclass(frozen=True, slots=True)
class Operand:
    """A word of a test.

    Args:
        text: its characters; None if unknown.
        literal: its characters if it has neither quotes nor expansions, as operators.
        glob: the pattern of Python's fnmatch that it is on the right of ==; None if unknown.
        is_formula: whether it may be more than an integer for -eq, which evaluates formulas.
    """

    text: str | None
    literal: str | None = None
    glob: str | None = None
    is_formula: bool = False


def decide_old_test(values: Sequence[str | None]) -> bool | None:
    """Decide the words between `[` and `]`, of which None is unknown; return None if undecided."""
    match values:
        case []:
            return False
        case [str(left), "=" | "==" | "!=" as test, str(right)]:
            return (left == right) is (test != "!=")
        case [left, str(test), right] if test in _COMPARISONS:
            return _compare(left, test, right)
        case ["!", *rest] if len(rest) in (1, 2, 3):
            return _negated(decide_old_test(rest))
        case [str(text)]:
            return bool(text)
        case [str(test), text]:
            return _is_empty(test, text)
    return None


def decide_test(operands: Sequence[Operand]) -> bool | None:
    """Decide the words between `[[` and `]]`; return None if undecided."""
    return _decide_joined(operands, _JOINTS)


def evaluates_formula(operands: Sequence[Operand]) -> bool:
    """Return whether `[[` may evaluate a formula, which can assign or fail."""
    return any(
        test.literal in _COMPARISONS and (left.is_formula or right.is_formula)
        for left, test, right in zip(operands, operands[1:], operands[2:], strict=False)
    )


def _decide_joined(operands: Sequence[Operand], joints: Sequence[str]) -> bool | None:
    """Decide tests joined by the first operator, each of tests joined by the others."""
    if not joints:
        return _decide_one(operands)
    parts: list[list[Operand]] = [[]]
    for operand in operands:
        if operand.literal == joints[0]:
            parts.append([])
        else:
            parts[-1].append(operand)
    results = [_decide_joined(part, joints[1:]) for part in parts]
    # One true alternative decides `||`, one false part decides `&&`.
    deciding = joints[0] == "||"
    return deciding if deciding in results else None if None in results else not deciding


def _decide_one(operands: Sequence[Operand]) -> bool | None:
    """Decide one test of `[[`."""
    is_negated = False
    while operands and operands[0].literal == "!":
        is_negated, operands = not is_negated, operands[1:]
    result = None
    match operands:
        case [Operand(str(text))]:
            result = bool(text)
        case [Operand(literal=str(test)), Operand(text)]:
            result = _is_empty(test, text)
        case [Operand(str(left)), Operand(literal="=" | "==" | "!=" as test), Operand(glob=glob)]:
            if glob is not None:
                result = fnmatch.fnmatchcase(left, glob) is (test != "!=")
        case [Operand(left), Operand(literal=str(test)), Operand(right)]:
            result = _compare(left, test, right)
    return _negated(result) if is_negated else result


def _negated(result: bool | None) -> bool | None:
    return None if result is None else not result


def _is_empty(test: str, text: str | None) -> bool | None:
    """Decide -z and -n."""
    return None if test not in ("-z", "-n") or text is None else bool(text) is (test == "-n")


def _compare(left: str | None, test: str, right: str | None) -> bool | None:
    """Decide a comparison of integers."""
    if test not in _COMPARISONS or left is None or right is None:
        return None
    are_integers = INTEGER.fullmatch(left) and INTEGER.fullmatch(right)
    return _COMPARISONS[test](int(left), int(right)) if are_integers else None
