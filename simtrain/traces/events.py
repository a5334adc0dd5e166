"""Read the events of a trace one after another, packed with gzip or not.

A trace is one JSON object with a list `traceEvents`, or that list alone. A profiler's trace has up
to a GiB, most of it events that a reader skips, so that the text is decoded event by event: memory
grows with the events that are kept only.

Source: pytorch/kineto, libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from simtrain.base.input_file import open_input
from simtrain.errors import InputError, Location

Event: TypeAlias = Mapping[str, Any]
Progress: TypeAlias = Callable[[int, int], None]
"""Takes the bytes of the file that were read, and all its bytes."""
_MOST_BYTES = 1 << 30
_MOST_VALUE = 1 << 24
"""Characters of an event, or of a value beside the events."""
_CHUNK = 1 << 20
_MOST_PACKED = 200
"""Times that a packed file may grow; profilers' traces grow 10 to 40 times."""
_ALWAYS_UNPACKED = 1 << 26
_MOST_OTHERS = 5_000_000
"""Events without a category, of which profilers write few."""
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*\{")
"""What stands between two events, and seldom inside one."""
_DECODER = json.JSONDecoder()
_SIGNS = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"')
_BEGINNING = 1 << 16


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace: by its name if it is packed, else by its beginning.

    A folder is one if it has packed traces, as `simtrain run -o FOLDER` writes them.
    """
    if path.is_dir():
        return bool(trace_files(path))
    name = path.name.lower()
    if name.endswith(".gz"):
        return True
    if not name.endswith(".json") or not path.is_file():
        return False
    try:
        with open_input(path) as file:
            beginning = file.read(_BEGINNING)
    except OSError:
        return False
    return any(sign in beginning for sign in _SIGNS)


def trace_files(path: Path) -> list[Path]:
    """Return the traces of a folder in the order of their names, or the file itself."""
    return sorted(path.glob("*.json.gz")) if path.is_dir() else [path]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What a trace says.

    Args:
        header: the values beside the events, such as `distributedInfo`.
        events: events of the chosen categories, in the file's order.
    """

    header: Mapping[str, Any]
    events: list[Event]


def read_events(
    path: Path, categories: Collection[str], show_progress: Progress | None = None
) -> TraceFile:
    """Read the events of some categories (`cat`); metadata (`ph` M) has the category "metadata".

    Raises:
        InputError: E726, the file cannot be read, is no trace, or is too large.
    """
    header: dict[str, Any] = {}
    events: list[Event] = []
    try:
        size = path.stat().st_size
        with open_input(path) as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            unpacked: IO[bytes] = gzip.GzipFile(fileobj=file) if is_packed else file  # type: ignore[assignment]
            text = _Text(unpacked, lambda: _report(show_progress, file.tell(), size), size)
            num_others = 0
            for event in _events(text, header):
                category = _category(event) if isinstance(event, dict) else None
                num_others += category is None
                if num_others > _MOST_OTHERS:
                    raise _Refusal(f"it has more than {_MOST_OTHERS:,} events without a category")
                if category in categories:
                    events.append(event)
    except OSError as error:
        raise no_trace(path, error.strerror or str(error)) from error
    except _Refusal as error:
        raise no_trace(path, str(error)) from error
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise no_trace(path, f"it is no JSON: {error}") from error
    return TraceFile(header, events)


def no_trace(path: Path, reason: str) -> InputError:
    """Return the error about a file that is no trace."""
    fix = "write one with torch.profiler.profile(record_shapes=True).export_chrome_trace"
    return InputError.of("E726", "no trace to read", Location(str(path)), fix, reason)


def arguments_of(event: Event) -> Mapping[str, Any]:
    """Return the arguments of an event; none if they are damaged."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def whole_number(event: Event, name: str) -> int | None:
    """Return an argument of an event if it is a whole number."""
    number = arguments_of(event).get(name)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def duration_s(event: Event) -> float:
    """Return the duration of an event in seconds; 0 if it has none that a kernel can have."""
    duration = event.get("dur")
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        return 0.0
    return duration * 1e-6 if 0 < duration < 1e12 else 0.0


def begin_us(event: Event) -> float | None:
    """Return the begin of an event in microseconds, if it has one."""
    begin = event.get("ts")
    if isinstance(begin, bool) or not isinstance(begin, int | float):
        return None
    # Times since 1970 are 1.7e15 microseconds; a float has them to a quarter of one.
    return begin if -1e17 < begin < 1e17 else None


def _category(event: Event) -> str | None:
    category = "metadata" if event.get("ph") == "M" else event.get("cat")
    return category if isinstance(category, str) else None


def _report(show_progress: Progress | None, done: int, total: int) -> None:
    if show_progress:
        show_progress(done, total)


class _Refusal(ValueError):
    """Why a text is no trace."""


class _Text:
    """The text of a file, of which a window is in memory.

    Args:
        file: the unpacked bytes.
        report: called for each chunk.
        packed_bytes: size of the file.
    """

    def __init__(self, file: IO[bytes], report: Callable[[], None], packed_bytes: int) -> None:
        self._file, self._report = file, report
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        # A small packed file must not fill memory or time.
        self._left = min(_MOST_BYTES, max(_ALWAYS_UNPACKED, packed_bytes * _MOST_PACKED))
        self._most = self._left
        self._window, self._place = "", 0
        self._is_complete, self._is_tried = False, False

    def skip(self, *marks: str) -> str:
        """Skip white space and one of some marks; return the mark, "" if none stands there."""
        while True:
            match = _SPACE.match(self._window, self._place)
            self._place = match.end() if match else self._place
            if self._place < len(self._window) or not self._more(_CHUNK):
                break
        mark = self._window[self._place : self._place + 1]
        if mark not in marks:
            return ""
        self._place += 1
        return mark

    def value(self) -> Any:
        """Return the next value.

        Raises:
            _Refusal: none stands there, or it is longer than `_MOST_VALUE`.
        """
        self.skip()
        size = _CHUNK
        while True:
            try:
                value, end = _DECODER.raw_decode(self._window, self._place)
                # A number may go on after the window.
                if end < len(self._window) or self._is_complete:
                    self._place = end
                    return value
            except json.JSONDecodeError as error:
                if self._is_complete:
                    raise _Refusal(f"it is no JSON: {error.msg}") from None
            if len(self._window) - self._place > _MOST_VALUE:
                raise _Refusal(f"it is no JSON, or has a value of {_MOST_VALUE >> 20} MiB")
            self._more(size)
            size *= 2

    def batch(self) -> list[Any]:
        """Return the items of a list up to the last that surely ends in the window; often none.

        Decoding many items at once takes a third of the time. It is tried once for each window.
        """
        if self._is_tried:
            return []
        self._is_tried = True
        mark = max(_BETWEEN.finditer(self._window, self._place), key=re.Match.start, default=None)
        if mark is None:
            return []
        try:
            items: list[Any] = _DECODER.decode(f"[{self._window[self._place : mark.start() + 1]}]")
        except json.JSONDecodeError:  # the mark stands inside an item
            return []
        self._place = mark.end() - 1
        return items

    def _more(self, size: int) -> bool:
        """Read more, and forget what is behind; return whether there was more."""
        self._report()
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            limit = f"{self._most >> 20} MiB unpacked"
            raise _Refusal(f"it has more than {limit}: profile fewer steps, without stacks")
        self._is_complete = not content
        added = self._decoder.decode(content, final=self._is_complete)
        self._window, self._place = self._window[self._place :] + added, 0
        self._is_tried = False
        return bool(content)


def _events(text: _Text, header: dict[str, Any]) -> Iterator[Any]:
    """Yield the events, and put the values beside them into the header."""
    if text.skip("["):
        yield from _items(text)
        return
    if not text.skip("{"):
        raise _Refusal("it is no JSON object")
    has_events = False
    while not text.skip("}"):
        key = text.value()
        if not isinstance(key, str) or not text.skip(":"):
            raise _Refusal("it is no JSON: a key is damaged")
        if key == "traceEvents":
            if not text.skip("["):
                break
            has_events = True
            yield from _items(text)
        else:
            header[key] = text.value()
        if not text.skip(","):
            if not text.skip("}"):
                raise _Refusal("it is no JSON: it ends in the middle, or a comma is missing")
            break
    if not has_events:
        raise _Refusal("it has no list traceEvents")


def _items(text: _Text) -> Iterator[Any]:
    """Yield the items of a list whose bracket was read."""
    if text.skip("]"):
        return
    while True:
        yield from text.batch()
        yield text.value()
        if text.skip("]"):
            return
        if not text.skip(","):
            raise _Refusal("it is no JSON: it ends in the middle, or a comma is missing")
