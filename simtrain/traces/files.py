"""Which files are traces."""

from __future__ import annotations

from pathlib import Path

from simtrain.base.input_file import open_input

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
