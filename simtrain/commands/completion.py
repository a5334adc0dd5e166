"""Completion: what options complete, and the words that bash splits at "=".

typer completes whole words, such as cluster=h10 after --set. bash hands over cluster, = and h10,
and replaces h10 only. So typer gets the words joined, and bash the rest of each completion.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

from simtrain.commands.printing import emit_data

_REQUEST, _WORDS, _CURSOR = "_SIMTRAIN_COMPLETE", "COMP_WORDS", "COMP_CWORD"


def is_requested_by_bash() -> bool:
    """Whether bash called the program to complete a word."""
    return os.environ.get(_REQUEST) == "complete_bash"


def complete_in_bash(app: Callable[[], None]) -> None:
    """Let typer complete the words of bash, and print the part of each word that bash replaces."""
    words = os.environ.get(_WORDS, "").splitlines()
    whole = joined_words(words[: int(os.environ.get(_CURSOR, "0")) + 1])
    os.environ[_WORDS], os.environ[_CURSOR] = "\n".join(whole), str(len(whole) - 1)
    before = len(whole[-1]) - len(whole[-1].rpartition("=")[2]) if whole else 0
    lines = io.StringIO()
    try:
        with redirect_stdout(lines):
            app()
    finally:
        emit_data("".join(f"{line[before:]}\n" for line in lines.getvalue().splitlines()))


def joined_words(words: Sequence[str]) -> list[str]:
    """Join name, = and value to one word; an option never follows an = without a space."""
    whole: list[str] = []
    for word in words:
        is_value = bool(whole) and whole[-1].endswith("=") and not word.startswith("-")
        if whole and (word == "=" or is_value):
            whole[-1] += word
        else:
            whole.append(word)
    return whole


def _shipped(kind: str) -> Callable[[str], list[str]]:
    """Return a function that completes the names of what comes with simtrain."""

    def names(typed: str) -> list[str]:
        """Return the names that begin with the typed text."""
        from simtrain.base import resources

        return [name for name in getattr(resources, f"list_{kind}")() if name.startswith(typed)]

    return names


shipped_scenarios = _shipped("scenarios")
shipped_sweeps = _shipped("sweeps")
shipped_profiles = _shipped("profiles")
shipped_stacks = _shipped("stacks")


def error_codes(typed: str) -> list[str]:
    """Return the codes of errors that begin with the typed text, for completion."""
    from simtrain.scenario.explanations import explanations

    return [code for code in explanations() if code.startswith(typed.upper())]


def settable_fields(typed: str) -> list[str]:
    """Return what --set can begin with: fields of a scenario, clusters and software stacks."""
    from simtrain.base.strict_yaml.model_fields import settable_names
    from simtrain.scenario import Scenario

    names = [f"{name}=" for name in settable_names(Scenario)]
    names += [f"cluster={name}" for name in shipped_profiles("")]
    names += [f"software={name}" for name in shipped_stacks("")]
    return [name for name in names if name.startswith(typed)]


def scalable_resources(typed: str) -> list[str]:
    """Return what --scale can begin with: the resources of a cluster."""
    from simtrain.hardware.upgrades import RESOURCES

    return [f"{name}=" for name in RESOURCES if name.startswith(typed)]
