"""Parse bash with `shfmt --to-json` (PyPI: shfmt-py), and find places in the text of a script.

Its tree is that of bash but for some traps: `[[ a && b || c ]]` comes as `a && (b || c)`, escapes
stay in texts, and `{a,b}` and `~` are plain text. Offsets count bytes: shfmt gets "?" in place of
other characters than ASCII, and all texts are taken from the script.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from bisect import bisect_right
from pathlib import Path
from typing import Any

from simtrain.errors import InputError, Location

Node = dict[str, Any]

CAPTURE_REMEDY = "let your shell run it: add --capture"
"""The remedy for a script that only a shell can follow."""
MAX_CHARACTERS = 80_000
"""The longest script that is read; the longest of Megatron-LM has under 20,000."""
_SECONDS = 60.0
_BRACKET = 0x1A
"""Stands in for a bracket that shfmt does not take."""


class Lines:
    """The lines of a text, to find the line and column of an offset."""

    def __init__(self, text: str, file: str) -> None:
        self.file, self.lines = file, text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def number(self, offset: int) -> int:
        """Return the number of the line of an offset, from 1 on."""
        return min(bisect_right(self.starts, offset), len(self.lines))

    def location(self, offset: int) -> Location:
        number = self.number(offset)
        start, line = self.starts[number - 1], self.lines[number - 1]
        return Location(self.file, number, offset - start + 1, line)

    def too_large(self, what: str, offset: int = 0) -> InputError:
        """Return the error of a script beyond a limit."""
        fix = f"shorten it; or {CAPTURE_REMEDY}"
        return InputError.of("E879", what, self.location(offset), fix)

    def wrong(self, what: str, offset: int) -> InputError:
        """Return the error of syntax that is not read."""
        fix = f"correct it; or {CAPTURE_REMEDY}"
        message = f"the syntax is not read: {what}"
        return InputError.of("E876", message, self.location(offset), fix)


def parse(text: str, lines: Lines) -> list[Node]:
    """Parse a script; positions in its tree are offsets of characters.

    Raises:
        InputError: the syntax is wrong (E876), the text exceeds a limit (E879), or there is no
            shfmt (E884).
    """
    if len(text) > MAX_CHARACTERS:
        size = f"{len(text):,} characters, more than {MAX_CHARACTERS:,}"
        raise lines.too_large(f"the text has {size}")
    beside = Path(sysconfig.get_path("scripts")) / "shfmt"
    program = str(beside) if beside.is_file() else shutil.which("shfmt")
    if program is None:
        raise _no_shfmt("scripts are parsed by the program shfmt, which is not installed", lines)
    encoded = bytearray(text.encode("ascii", "replace"))
    while True:
        run = _run_shfmt(program, bytes(encoded), lines)
        if run.returncode == 0:
            return _tree(run.stdout, lines)
        message = run.stderr.decode("utf-8", "replace").strip()
        if "max depth" in message:
            raise lines.too_large("its commands are nested deeper than shfmt reads")
        match = re.match(r"(?:<standard input>:)?(\d+):(\d+): (.*)", message, re.DOTALL)
        line, column, what = match.groups() if match else ("1", "1", message)
        offset = lines.starts[min(int(line), len(lines.lines)) - 1] + int(column) - 1
        # bash takes the word [0]*3+[1]*58 in an array, and shfmt does not.
        if "must be followed by" not in what or encoded[offset : offset + 1] != b"[":
            raise lines.wrong(what, offset)
        encoded[offset] = _BRACKET


def _run_shfmt(program: str, text: bytes, lines: Lines) -> subprocess.CompletedProcess[bytes]:
    command = [program, "--to-json", "-ln", "bash"]
    try:
        return subprocess.run(
            command, input=text, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise lines.too_large("its commands are nested too deeply") from None


def _tree(printed: bytes, lines: Lines) -> list[Node]:
    """Return the commands of what shfmt prints."""
    text = printed.replace(b"\\u%04x" % _BRACKET, b"[")
    try:
        tree = json.loads(text, object_hook=_with_plain_offsets)
    except RecursionError:
        raise lines.too_large("its commands are nested too deeply") from None
    except TypeError:
        raise _no_shfmt("scripts are parsed by shfmt 3.12 or later", lines) from None
    return tree.get("Stmts") or []


def _with_plain_offsets(node: Node) -> Any:
    """Return a position as its offset alone, which shfmt leaves out if it is 0.

    Raises:
        TypeError: the tree has another form, which versions before 3.12 have.
    """
    if isinstance(node.get("Op"), int):
        raise TypeError
    return node.get("Offset", 0) if "Col" in node else node


def _no_shfmt(message: str, lines: Lines) -> InputError:
    fix = f"pip install shfmt-py, or put shfmt on the PATH; or {CAPTURE_REMEDY}"
    return InputError.of("E884", message, Location(lines.file), fix)
