"""Text of `simtrain show`, and the reference page of all error codes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from simtrain.scenario.explanations import TITLES, Explanation

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
