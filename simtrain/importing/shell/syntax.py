"""Parse bash with `shfmt --to-json` (PyPI: shfmt-py), and find places in the text of a source.

Its tree is that of bash but for some traps, each of which is handled where it would change a value:
a word of an array that begins with "[" is refused, `[[ a && b || c ]]` comes as `a && (b || c)`, a
"#" right behind a quote in an array is a comment for it, escapes stay in texts, offsets count bytes
of UTF-8, and `{a,b}` and `~` are plain text.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from simtrain.errors import InputError, Location
from simtrain.importing.shell.values import Segment

Node = dict[str, Any]

CAPTURED = "#!/bin/bash\n# Captured:"
"""How a script begins that `simtrain.importing.capture` writes."""
MAX_CHARACTERS = 80_000
"""The longest script that is read; the longest of Megatron-LM has under 20,000."""
_MOST_BYTES_OF_TREE = 64 << 20
_SECONDS = 60.0
_MARKS = {character: chr(1 + at) for at, character in enumerate("[|&;<>(")} | {
    character: chr(14 + at) for at, character in enumerate(")*?{}#~!]")
}
"""Control characters that stand for characters which shfmt would read as syntax."""
UNMARKED = {ord(mark): character for character, mark in _MARKS.items()}
_CONTROL = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f]")
_REPAIRABLE = ("`[x]` must be followed by `=`", "`[` must follow a name like a[i]")


_LITERAL = re.compile(
    r"""'[^']*' | "(?:[^"\\]|\\.)*" | \$\{[^}]*\} | \$\(\([^)]*\)\) | \$\([^)]*\) | `[^`]*` | \\.
    | (?P<special>[][|&;<>(){}*?#~!])""",
    re.VERBOSE | re.DOTALL,
)


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

    def number(self, offset: int) -> int:
        """Return the number of the line of an offset, from 1 on."""
        return min(bisect_right(self.starts, offset), len(self.lines))

    def location(self, offset: int) -> Location:
        """Return the line and column of an offset."""
        if self.is_captured:
            return Location(self.file)
        number = self.number(offset)
        start, line = self.starts[number - 1], self.lines[number - 1]
        return Location(self.file, number, offset - start + 1, line)

    def too_large(self, what: str, offset: int = 0) -> InputError:
        """Return the error of a script beyond a limit."""
        fix = f"shorten it, or import the arguments alone as one text; or {self.capture_remedy}"
        return InputError.of("E879", what, self.location(offset), fix)

    @property
    def capture_remedy(self) -> str:
        """The remedy for a script that only a shell can follow."""
        if self.is_captured:
            return "see what the script starts, which was recorded"
        return "let your shell run it: add --capture"


@dataclass(slots=True)
class Source:
    """A parsed text.

    Args:
        tree: its commands, with byte offsets for positions.
        data: the text in UTF-8, with marks in place of some characters.
        places: the offset in the file of each character, and of the end.
        holes: the characters that stand for unknown parts.
    """

    tree: list[Node]
    data: bytes
    places: list[int]
    holes: dict[str, Segment] = field(default_factory=dict)

    def index(self, offset: int) -> int:
        """Return the index of a character from its offset in bytes."""
        return offset if self.data.isascii() else len(self.data[:offset].decode())

    def place(self, offset: int) -> int:
        """Return the place in the file of an offset in bytes."""
        return self.places[min(self.index(offset), len(self.places) - 1)]

    def slice(self, node: Node) -> str:
        """Return the text of a node."""
        return self.data[node["Pos"] : node["End"]].decode()

    def written(self, node: Node) -> str:
        """Return the text of a node as the user wrote it."""
        text = self.slice(node).translate(UNMARKED)
        return "".join(hole.text if (hole := self.holes.get(c)) else c for c in text)


def parse(
    text: str, lines: Lines, places: list[int] | None = None, *, is_words: bool = False
) -> Source:
    """Parse a script, or the words of one command, in which only quotes and $ have a meaning.

    Args:
        text: the script, or a text that it evaluates.
        lines: the lines of the file, for errors.
        places: the offset in the file of each character of the text and of its end.

    Raises:
        InputError: the syntax is wrong or not read (E876), the text exceeds a limit (E879), or
            there is no shfmt (E884).
    """
    places = places or [*range(len(text) + 1)]
    if len(text) > MAX_CHARACTERS:
        size = f"{len(text):,} characters, more than {MAX_CHARACTERS:,}"
        raise lines.too_large(f"the text has {size}")
    if strange := _CONTROL.search(text):
        raise _wrong("a control character", lines.location(places[strange.start()]), lines)
    if is_words:
        text = text.replace("\\\n", " \n").replace("\n", " ")
        text = ": " + _LITERAL.sub(lambda part: _MARKS.get(part["special"] or "", part[0]), text)
        places = [0, 0, *places]
    data = bytearray(text.encode("utf-8", "replace"))
    while True:
        output, message = _run_shfmt(bytes(data), lines)
        if output is not None:
            break
        match = re.match(r"(?:<standard input>:)?(\d+):(\d+): (.*)", message, re.DOTALL)
        line, column, what = match.groups() if match else ("1", "1", message)
        rows = bytes(data).splitlines(keepends=True)
        at = sum(map(len, rows[: int(line) - 1])) + int(column) - 1
        if what not in _REPAIRABLE or data[at : at + 1] != b"[":
            if "max depth" in what:
                raise lines.too_large("its commands are nested deeper than shfmt reads")
            index = len(bytes(data)[: max(at, 0)].decode("utf-8", "ignore"))
            place = lines.location(places[min(index, len(places) - 1)])
            raise _wrong(what.translate(UNMARKED), place, lines)
        data[at : at + 1] = _MARKS["["].encode()  # of one byte, so that all offsets stay
    try:
        tree = json.loads(output, object_hook=_with_plain_offsets)
    except RecursionError:
        raise lines.too_large("its commands are nested too deeply") from None
    except TypeError:
        raise _no_shfmt("scripts are parsed by shfmt 3.12 or later", lines) from None
    source = Source(tree.get("Stmts") or [], bytes(data), places)
    for comment in _comments_of(tree):
        # shfmt ends a word there, bash does not.
        if comment and data[comment - 1] not in b" \t\n;&|()`":
            raise _wrong('a "#" behind a quote', lines.location(source.place(comment)), lines)
    return source


def _with_plain_offsets(node: Node) -> Any:
    """Return a position as its offset alone, which shfmt leaves out if it is 0.

    Raises:
        TypeError: the tree has another form, which versions before 3.12 have.
    """
    if isinstance(node.get("Op"), int):
        raise TypeError
    return node.get("Offset", 0) if "Col" in node else node


def _wrong(what: str, place: Location, lines: Lines) -> InputError:
    fix = f"correct it, or import the arguments alone as one text; or {lines.capture_remedy}"
    return InputError.of("E876", f"the syntax is not read: {what}", place, fix)


def _no_shfmt(message: str, lines: Lines) -> InputError:
    fix = f"pip install shfmt-py, or put shfmt on the PATH; or {lines.capture_remedy}"
    return InputError.of("E884", message, Location(lines.file), fix)


def _run_shfmt(data: bytes, lines: Lines) -> tuple[bytes | None, str]:
    """Return the tree that shfmt prints; without one, its message."""
    beside = Path(sysconfig.get_path("scripts")) / "shfmt"
    program = str(beside) if beside.is_file() else shutil.which("shfmt")
    if program is None:
        raise _no_shfmt("scripts are parsed by the program shfmt, which is not installed", lines)
    with TemporaryFile() as output:
        try:
            run = subprocess.run(
                [program, "--to-json", "-ln", "bash"],
                input=data,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise lines.too_large(f"shfmt has not parsed it in {_SECONDS:g} s") from None
        if output.tell() > _MOST_BYTES_OF_TREE:
            raise lines.too_large(f"its syntax tree has more than {_MOST_BYTES_OF_TREE:,} bytes")
        output.seek(0)
        is_tree = run.returncode == 0
        return output.read() if is_tree else None, run.stderr.decode("utf-8", "replace").strip()


def _comments_of(node: Any) -> Iterable[int]:
    """Yield the offsets of the comments in a tree."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key == "Hash":
            yield value
        elif isinstance(value, dict | list):
            yield from _comments_of(value)
