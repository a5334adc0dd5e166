"""Find places in the text of a source, and name the way around what is not read there."""

from __future__ import annotations

from bisect import bisect_right

from simtrain.errors import Location

CAPTURED = "#!/bin/bash\n# Captured:"
"""How a script begins that `simtrain.importing.capture` writes."""


class Lines:
    """The lines of a text, to find the line and column of an offset.

    The user has no lines of a captured script: places in it are the file alone.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file, self.lines = file, text.split("\n")
        self.is_captured = text.startswith(CAPTURED)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def location(self, offset: int) -> Location:
        """Return the line and column of an offset."""
        if self.is_captured:
            return Location(self.file)
        number = min(bisect_right(self.starts, offset), len(self.lines)) - 1
        column = offset - self.starts[number]
        return Location(self.file, number + 1, column + 1, self.lines[number])


def capture_remedy(file: str) -> str:
    """Return the remedy for a script that only a shell can follow."""
    return f"let your shell run it: --capture -- bash {file}"
