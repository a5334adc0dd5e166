"""Explanations of error codes: what is wrong, why it is an error, how to fix it, and an example.

The TOML files of this package contain them, one file per hundred. The rules of scenarios explain
themselves by their examples: `python -m docs.update` writes `rules.toml` from them.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from simtrain.base.values import dataclass
from simtrain.errors import InputError, did_you_mean

RULES_FILE = Path(__file__).with_name("rules.toml")
_ENTRY = re.compile(r"^\[(E[0-9]+)\]\n.*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
TITLES = {
    "1": "Input that cannot be read",
    "2": "Values that no scenario, sweep or profile can have",
    "3": "Combinations that the training framework refuses",
    "4": "Schedules, pipeline layouts, and rules of models with experts",
    "5": "Programs for the engine, and results",
    "6": "Legal scenarios that do not fit",
    "7": "Measuring a machine and fitting a profile",
    "8": "Sweeps, searches, figures, costs and imports",
    "9": "Command lines",
}
"""The subject of each hundred codes, by the first digit."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of an error code.

    Args:
        code: such as "E310".
        what: what is wrong, as a sentence; of a rule, what is wrong with its example.
        why: why simtrain refuses it.
        fix: what to write instead.
        example: input with this error: a command, lines to merge into a legal scenario, or a
            sentence if the error depends on a machine or a folder.
    """

    code: str
    what: str
    why: str
    fix: str
    example: str

    @property
    def is_text(self) -> bool:
        return not self.example.endswith(".")


@functools.cache
def _entries() -> dict[str, str]:
    """Return the lines of each code, sorted by code; most commands parse those of one."""
    texts = [file.read_text(encoding="utf-8") for file in RULES_FILE.parent.glob("*.toml")]
    return dict(sorted((entry[1], entry[0]) for text in texts for entry in _ENTRY.finditer(text)))


def codes() -> Iterator[str]:
    """Yield all codes in order."""
    yield from _entries()


def explanations() -> dict[str, Explanation]:
    """Load every explanation by its code, sorted by code."""
    return {code: explain(code) for code in codes()}


def explain(code: str) -> Explanation:
    """Return the explanation of a code, in upper or lower case, with or without its E.

    Raises:
        InputError: no error has this code.
    """
    import tomllib

    entries = _entries()
    written = code.strip().upper()
    name = written if written.startswith("E") else f"E{written}"
    if name not in entries:
        fix = f"{did_you_mean(name, entries)}simtrain show errors lists all codes"
        raise InputError.of("E115", f'no error has the code "{code}"', fix=fix)
    return Explanation(name, **tomllib.loads(entries[name])[name])


_HEAD = """\
# Errors

Every error that simtrain reports has a code. `simtrain show E310` prints one of these entries.
The exit code is 3 if a scenario does not fit in memory, and 2 for all other errors.

YAML examples are merged into a legal scenario: 48 layers, 64 heads, a hidden size of 6144,
sequences of 2048 tokens, microbatches of 4 and a global batch of 64.
"""


def explanation_page(explanation: Explanation, width: int) -> str:
    """Format one entry, wrapped to `width` columns."""
    parts = [
        _hanging(f"{explanation.code}  {explanation.what}", width),
        _hanging(f"why:  {explanation.why}", width),
        _hanging(f"fix:  {explanation.fix}", width),
        "example:\n" + textwrap.indent(explanation.example, " " * 6),
    ]
    return "\n".join(parts) + "\n"


def _hanging(text: str, width: int) -> str:
    return textwrap.fill(text, width, subsequent_indent=" " * 6)


def errors_document(every: Iterable[Explanation]) -> str:
    """Build the reference page of all entries in Markdown."""
    parts = [_HEAD]
    title = ""
    for explanation in every:
        if TITLES[explanation.code[1]] != title:
            title = TITLES[explanation.code[1]]
            parts.append(f"## E{explanation.code[1]}xx: {title}\n")
        parts.append(
            f"### {explanation.code}\n\n{explanation.what}\n\n- Why: {explanation.why}\n- "
            f"Fix: {explanation.fix}\n"
        )
        if explanation.is_text:
            parts.append(f"```\n{explanation.example}\n```\n")
        else:
            parts.append(f"Example: {explanation.example}\n")
    return "\n".join(parts)
