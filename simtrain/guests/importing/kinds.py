"""The kinds of files that each importer reads, by which commands recognise other files, too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from simtrain.base.importer import FileKind


def _kind(row: dict[str, Any]) -> FileKind:
    signs = {name: re.compile(row[name], re.MULTILINE) for name in {"sign", "other"} & row.keys()}
    return FileKind(**row | signs)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
KINDS = {importer: tuple(map(_kind, rows)) for importer, rows in _TABLES.items()}
