"""Files with the lengths of documents: a number of tokens per line."""

from __future__ import annotations

import functools
from pathlib import Path

from simtrain.base.input_file import FileVersion
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError, Location
from simtrain.scenario.section import MAX_COUNT

_MOST_BYTES = 64 << 20


def read_lengths(file: str) -> tuple[int, ...]:
    """Return the lengths in a file; empty lines are skipped.

    Raises:
        InputError: the file cannot be read (E101 to E103), or a line is no length (E965).
    """
    return _lengths(FileVersion.of(file))


@functools.lru_cache(maxsize=8)
def _lengths(version: FileVersion) -> tuple[int, ...]:
    lengths = []
    text = read_text(Path(version.file), _MOST_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word:
            continue
        if not (word.isascii() and word.isdigit() and 0 < int(word) <= MAX_COUNT):
            raise InputError.of(
                "E965",
                f"{word[:40]!r} is no number of tokens",
                Location(version.file, number, 1, line[:200]),
                fix="write a whole number above 0 on each line",
                reason="each line is the length of a document, of which draws take one at a time",
            )
        lengths.append(int(word))
    if not lengths:
        message, fix = "the file has no lengths", "write a number of tokens on each line"
        raise InputError.of("E965", message, Location(version.file), fix)
    return tuple(lengths)
