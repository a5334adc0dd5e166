"""Generated text in documents: blocks between two markers, and figures that a paragraph quotes.

The opening marker of a block names a generator and its arguments: `<!--=table5-->`. Each marker has
its own line, and empty lines separate a table from it; `<!--/-->` ends the block.

A comment below a paragraph, a list or a table lists the figures that it quotes, in their order,
each with its generator:

    Llama 3 70B takes 9.61 s, with an MFU of 41.2 %.

    <!--quotes
    9.61 s = time llama3_70b
    41.2 % = mfu llama3_70b
    -->
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?P<indent>[ ]*)<!--=(?P<request>.*?)-->\n(?P<text>.*?)<!--/-->", re.DOTALL | re.MULTILINE
)
_QUOTES = re.compile(
    r"(?P<paragraph>(?:^[ ]*[^\s].*\n)+)\n"
    r"(?P<opening>[ ]*<!--quotes\n)(?P<entries>(?:.*\n)*?)(?P<closing>[ ]*-->)",
    re.MULTILINE,
)
_ENTRY = re.compile(r"^(?P<indent>[ ]*)(?P<text>.+?) = (?P<request>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Marked:
    """Generated text of a document.

    Args:
        request: name of a generator and its arguments.
        text: the generated text: a block without empty lines around it, or a quoted figure.
        before: text of the document before it.
    """

    request: str
    text: str
    before: str

    @property
    def line(self) -> int:
        """Line of the request in its document, from 1."""
        return self.before.count("\n") + 1


def marked(text: str) -> list[Marked]:
    """Return all generated texts of a document: its blocks, then its quoted figures."""
    return [
        *map(_block, _BLOCK.finditer(text)),
        *(one for found in _QUOTES.finditer(text) for one in _quotes(found)),
    ]


def replaced(text: str, value: Callable[[Marked], str]) -> str:
    """Return the document with `value` of each generated text in its place.

    Raises:
        ValueError: a paragraph does not quote a figure that is listed below it, or not in the order
            of the list.
    """
    text = _BLOCK.sub(lambda found: _with_block(found, value(_block(found))), text)
    return _QUOTES.sub(lambda found: _with_quotes(found, value), text)


def _block(found: re.Match[str]) -> Marked:
    indent = found["indent"]
    lines = (line.removeprefix(indent) for line in found["text"].strip().split("\n"))
    return Marked(found["request"], "\n".join(lines), found.string[: found.start()])


def _with_block(found: re.Match[str], words: str) -> str:
    gap = ["" for _ in range(found["text"].startswith("\n"))]
    lines = [f"<!--={found['request']}-->", *gap, *words.split("\n"), *gap, "<!--/-->"]
    return "\n".join(f"{found['indent']}{line}" if line else "" for line in lines)


def _quotes(found: re.Match[str]) -> list[Marked]:
    start = found.start("entries")
    return [
        Marked(entry["request"], entry["text"], found.string[: start + entry.start()])
        for entry in _ENTRY.finditer(found["entries"])
    ]


def _with_quotes(found: re.Match[str], value: Callable[[Marked], str]) -> str:
    """Replace each listed figure in the paragraph, from left to right, and in the list."""
    done, rest, entries = "", found["paragraph"], []
    indent = " " * (len(found["closing"]) - len("-->"))
    for one in _quotes(found):
        words = r"\s+".join(map(re.escape, one.text.split()))
        quoted = re.search(rf"(?<![\w.,]){words}(?!\w)", rest)
        if quoted is None:
            raise ValueError(f'line {one.line}: the text above does not quote "{one.text}" here')
        new = value(one)
        done += rest[: quoted.start()] + new
        rest = rest[quoted.end() :]
        entries.append(f"{indent}{new} = {one.request}\n")
    return f"{done}{rest}\n{found['opening']}{''.join(entries)}{found['closing']}"
