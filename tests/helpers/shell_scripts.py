# ruff: noqa: E501 (scripts are easier to compare on one line)
"""Bash scripts drawn from a grammar, and the arguments that bash passes to their launcher."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from simtrain.guests.importing.shell.expansion import BashWord

NAMES = ("N", "M", "SIZE", "ARGS")
LAUNCH = 'torchrun "$N" "$M" "$SIZE" "$ARGS" $N $ARGS "${ARGS[@]}" ${M:-7}\n'
_PARTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
"""Fragments of scripts, by kind."""


def drawn_script(seed: int) -> str:
    """Return a script that launches one command after some that may change its arguments."""
    draw = random.Random(seed)
    statements = [f"{name}={draw.choice(_PARTS['values'])}" for name in NAMES]
    if draw.random() < 0.5:
        statements[-1] = 'ARGS=(a "b c")'
    statements += [_statement(draw, depth=0) for _ in range(draw.randint(1, 6))]
    return "\n".join(statements) + "\n" + LAUNCH


def _statement(draw: random.Random, depth: int) -> str:
    def inner() -> str:
        return _statement(draw, depth + 1)

    name = draw.choice(NAMES[:3])
    simple = f"{name}={draw.choice(_PARTS['values'] + _PARTS['expansions'])}"
    kind = draw.randrange(12 if depth < 3 else 5)
    if kind < 3:
        return simple
    if kind < 5:
        return draw.choice(_PARTS["odd"])
    condition = draw.choice(_PARTS["conditions"])
    joint, other = draw.choice(("&&", "||")), draw.choice(("&&", "||"))
    match kind:
        case 5:
            return f"if {condition}; then\n{inner()}\nelse\n{inner()}\nfi"
        case 6:
            return f"if {condition}\nthen\n{inner()}\nelif {draw.choice(_PARTS['conditions'])}; then {simple}; fi"
        case 7:
            return f"{condition} {joint} {simple}"
        case 8:
            return f"{condition} {joint} {draw.choice(_PARTS['conditions'])} {other} {{ {simple}\n{inner()}\n}}"
        case 9:
            return f"(\n{inner()}\n)"
        case 10:
            return f"{{\n{inner()}\n{simple}\n}} {draw.choice(('', '| cat', '&', '> out'))}"
    return f"{inner()}\n{inner()}"


def ordinary_script(seed: int) -> str:
    """Return a script in the style of Megatron-LM's examples."""
    draw = random.Random(seed)
    heads, logs = draw.sample(_PARTS["heads"], 2), draw.sample(_PARTS["logs"], 2)
    parts = [heads[0], draw.choice(_PARTS["sizes"]), draw.choice(_PARTS["nodes"]), *logs]
    return "".join([*parts, draw.choice(_PARTS["arguments"]), draw.choice(_PARTS["launches"])])


def arguments_in_bash(scripts: Sequence[str], folder: Path) -> list[list[str] | None]:
    """Return what bash passes to `torchrun` in each script; None if it is not reached.

    Args:
        scripts: texts without effect outside of their folder.
        folder: an empty folder.
    """
    (folder / "empty").mkdir()
    # Other programs are not there, and succeed.
    launcher = "command_not_found_handle() { :; }\n"
    launcher += 'torchrun() { printf \'%s\\0\' "$@" > "$ASKED"; }\n'
    (folder / "launcher").write_text(launcher, encoding="utf-8")
    for number, script in enumerate(scripts):
        (folder / f"{number}.sh").write_text(script, encoding="utf-8")
    driver = 'cd empty; for ((i = 0; i < $1; i++)); do ASKED="../$i.out" BASH_ENV=../launcher PATH=/nothing "$BASH" "../$i.sh"; done'
    subprocess.run(
        ["bash", "-c", driver, "driver", str(len(scripts))],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        start_new_session=True,
    )
    outputs = [folder / f"{number}.out" for number in range(len(scripts))]
    return [
        output.read_text(encoding="utf-8").split("\0")[:-1] if output.exists() else None
        for output in outputs
    ]


def agrees(words: list[BashWord], actual: list[str]) -> bool:
    """Whether the known words are those of bash; an unknown word can be any number of words."""
    pattern = "".join(
        "(?:[^\0]*\0)*?" if word.unknown else re.escape(word.text) + "\0" for word in words
    )
    return re.fullmatch(pattern, "".join(f"{word}\0" for word in actual)) is not None
