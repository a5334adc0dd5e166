"""Recordings of a block at any sequence length, filled in from one of them.

A length changes the sizes of a block's ops, but neither their order nor what they wait for, unless
the block compares sizes. So a block that was recorded at some lengths is recorded once more with a
`Size` in place of the length. Its arithmetic writes itself down as lines of Python, its comparisons
as conditions under which the lines hold. Compiled, they build the ops of every other length that
meets the conditions, in a tenth of the time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from simtrain.base.values import fields, replace
from simtrain.errors import SimtrainError

T = TypeVar("T")
Piece = tuple[Any, ...]
"""A function of a run (`segments.BlockRun`), and the run without its block and microbatch."""
_TIMES_DERIVED = 2
"""How often each piece is derived before a template is written, which takes as long as this."""


def for_any_length(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a function of a run, whose results at other lengths a template fills in.

    A run is a named tuple of a block or what else is hashable, a `microbatch`, and anything more.
    """

    @functools.wraps(function)
    def filled_in(run: Any) -> T:
        block, batch, *others = run
        if isinstance(batch.seq_length, Size):
            return function(run)
        pieces, piece = _filled(block, batch), (function, *others)
        result: T | None = pieces.get(piece)
        if result is None:
            result = pieces[piece] = _template(block, batch.alike).derive(piece, run)
        return result

    return filled_in


@functools.lru_cache(maxsize=4096)
def _filled(block: Any, batch: Any) -> dict[Piece, Any]:
    return _template(block, batch.alike).fill(batch)


@functools.lru_cache(maxsize=1024)
def _template(block: Any, batch: Any) -> _Template:
    """Return the template of a block in microbatches that differ in length only."""
    return _Template()


class _Template:
    """What was derived from recordings of a block, as a function of the length."""

    def __init__(self) -> None:
        self.derived: dict[Piece, Any] = {}  # with a run
        self.num_derived = 0.0  # results that were derived since the template was written
        self.pieces: tuple[Piece, ...] = ()
        self.build: Callable[[int], Sequence[Any]] = lambda length: ()

    def derive(self, piece: Piece, run: Any) -> Any:
        self.derived[piece] = run
        self.num_derived += 1
        return piece[0](run)

    def fill(self, batch: Any) -> dict[Piece, Any]:
        """Return results at a length, if it meets the conditions; write them first if that pays."""
        if self.derived and self.num_derived >= _TIMES_DERIVED * len(self.derived):
            self.num_derived = -math.inf  # stays so if the block does what a size cannot
            # What a size lacks, or a length that a block refuses: deriving it raises that again.
            with suppress(TypeError, AttributeError, SimtrainError):
                trace, pieces = Trace(), tuple(self.derived)
                size = replace(batch, seq_length=Size(trace, "v_length", batch.seq_length))
                vars(size)["_hash"] = id(size)  # sizes have none
                runs = [run._replace(microbatch=size) for run in self.derived.values()]
                results = [piece[0](run) for piece, run in zip(pieces, runs, strict=True)]
                self.pieces, self.build, self.num_derived = pieces, trace.compiled(results), 0
        return dict(zip(self.pieces, self.build(batch.seq_length), strict=False))


class Trace:
    """Lines of Python that compute sizes and build values of them."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}  # expressions with their variables, which begin with v
        self.constants: dict[object, tuple[str, Any]] = {}

    def size(self, text: str, value: Any = None) -> Size:
        """Return what an expression computes, in a variable."""
        return Size(self, self.lines.setdefault(text, f"v{len(self.lines)}"), value)

    def holds(self, text: str, value: bool) -> bool:
        """Add the condition that a comparison has the same result at another length."""
        self.lines[f"if {'not ' if value else ''}({text}): return ()"] = ""
        return value

    def name(self, value: Any) -> str:
        """Return the name of a value: of a size, of what sizes are part of, or of a constant."""
        if isinstance(value, Size):
            return value.name
        kind, names = type(value), list[str]()
        if isinstance(value, tuple):
            names = [self.name(part) for part in value]
        elif hasattr(kind, "__dataclass_fields__"):
            names = [self.name(getattr(value, each.name)) for each in fields(value)]
        if any(name.startswith("v") for name in names):
            made, text = "" if kind is tuple else self.name(kind), f"({', '.join(names)},)"
            is_named = kind is not tuple and issubclass(kind, tuple)
            return self.size(f"new({made}, {text})" if is_named else f"{made}{text}").name
        key = (kind, value) if isinstance(value, int | str) else id(value)
        return self.constants.setdefault(key, (f"c{len(self.constants)}", value))[0]

    def compiled(self, results: Sequence[Any]) -> Callable[[int], Sequence[Any]]:
        """Return the function of the length that builds results, or returns nothing."""
        result = self.name(tuple(results))
        lines = [f"{name} = {text}" if name else text for text, name in self.lines.items()]
        names = {"math": math, "new": tuple.__new__, **dict(self.constants.values())}
        exec("\n ".join(["def build(v_length):", *lines, f"return {result}"]), names)
        build: Callable[[int], Sequence[Any]] = names["build"]
        return build


class Size:
    """A number that depends on the length: its variable in a trace, and its value there.

    It has no hash and no text, and is no index: a block that needs them raises a TypeError.
    """

    __slots__ = ("name", "trace", "value")
    __hash__ = __str__ = __repr__ = __format__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, name: str, value: Any) -> None:
        self.trace, self.name, self.value = trace, name, value

    def __bool__(self) -> bool:
        return self.trace.holds(self.name, bool(self.value))


def _operation(text: str) -> Any:
    compute = eval(f"lambda x, y=None: {text}", {"math": math})
    form = text.replace("x", "{0}").replace("y", "({1})")

    def method(self: Size, other: Any = None) -> Any:
        if not isinstance(other, int | float | Size | None):
            return NotImplemented
        name, number = (other.name, other.value) if isinstance(other, Size) else (other, other)
        line, value = form.format(self.name, name), compute(self.value, number)
        trace = self.trace
        return trace.holds(line, value) if isinstance(value, bool) else trace.size(line, value)

    return method


_UNARY = {"neg": "-x", "round": "round(x)", "ceil": "math.ceil(x)", "trunc": "math.trunc(x)"}
_BINARY = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"}
_BINARY |= {"pow": "**", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

for _name, _text in _UNARY.items():
    setattr(Size, f"__{_name}__", _operation(_text))

for _name, _symbol in _BINARY.items():
    setattr(Size, f"__{_name}__", _operation(f"x {_symbol} y"))
    setattr(Size, f"__r{_name}__", _operation(f"y {_symbol} x"))
