"""Read the events of a trace, packed with gzip or not.

A trace is one JSON object with a list `traceEvents`, or that list alone. Most events of a
profiler's trace are of categories that a reader skips: the decoder drops them at once, to bound
memory.

Source: pytorch/kineto, libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from simtrain.base.input_file import open_input
from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location

Event: TypeAlias = Mapping[str, Any]
_MOST_BYTES = 1 << 30
_MOST_PACKED = 200
"""Times that a packed file may grow; profilers' traces grow 10 to 40 times."""
_ALWAYS_UNPACKED = 1 << 26
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
        header: the whole trace, which has values such as `distributedInfo` beside the events.
        events: events of the chosen categories, in the file's order.
    """

    header: Mapping[str, Any]
    events: list[Event]


def read_events(path: Path, categories: Collection[str]) -> TraceFile:
    """Read the events of some categories (`cat`); metadata (`ph` M) has the category "metadata".

    Raises:
        InputError: E726, the file cannot be read, is no trace, or is too large.
    """

    def chosen(item: Event) -> Event | None:
        return item if "ph" not in item or _category(item) in categories else None

    try:
        document = json.loads(_text_of(path), object_hook=chosen)
    except OSError as error:
        raise no_trace(path, error.strerror or str(error)) from error
    except _Refusal as error:
        raise no_trace(path, str(error)) from error
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise no_trace(path, f"it is no JSON: {error}") from error
    header = document if isinstance(document, dict) else {"traceEvents": document}
    events = header.get("traceEvents")
    if not isinstance(events, list):
        raise no_trace(path, "it has no list traceEvents")
    return TraceFile(header, [event for event in events if isinstance(event, dict)])


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


class _Refusal(ValueError):
    """Why a text is no trace."""


def _text_of(path: Path) -> str:
    size = path.stat().st_size
    # A small packed file must not fill memory or time.
    most = min(_MOST_BYTES, max(_ALWAYS_UNPACKED, size * _MOST_PACKED))
    with open_input(path) as file:
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        content = (gzip.GzipFile(fileobj=file) if is_packed else file).read(most + 1)
    if len(content) > most:
        limit = f"{most >> 20} MiB unpacked"
        raise _Refusal(f"it has more than {limit}: profile fewer steps, without stacks")
    return content.decode()
