"""Lines of each room, which only fall: `python -m tests.test_budget` writes lower numbers.

A room that needs more lines makes place in itself. To raise a number is a commit of its own, which
says whose question pays for it. `python -m tests.test_budget REVISION` prints the difference of
each room to a revision.
"""

import collections
import pathlib
import re
import subprocess
import sys

from tests.helpers.command_line import ROOT

BUDGET = {
    "base": 2889,
    "schedules": 2227,
    "scenario": 6678,
    "hardware": 2513,
    "workload": 9743,
    "durations": 983,
    "engine": 1090,
    "iteration": 6831,
    "studies": 6872,
    "views": 2776,
    "render": 3900,
    "commands": 2595,
    "top": 602,
    "importing": 6703,
    "recording": 4030,
    "traces": 1890,
    "related_work": 95,
    "paper": 2484,
    "calibrate": 9449,
    "docs/update": 887,
    "benchmarks": 1688,
    "tests": 41491,
}
"""Lines of Python, JavaScript and CSS by room."""

_SUFFIXES = (".py", ".js", ".css")
_OUTSIDE = ("calibrate", "docs/update", "benchmarks", "tests")


def room_of(path: str) -> str | None:
    """Return the room of a file by its path in the project, or None."""
    parts = path.split("/")

    if parts[0] == "simtrain":
        parts = [part for part in parts[1:] if part != "guests"]
        return parts[0] if len(parts) > 1 else "top"

    return next((room for room in _OUTSIDE if path.startswith(f"{room}/")), None)


def lines_now() -> dict[str, int]:
    """Return the lines of each room in the working tree."""
    lines: collections.Counter[str] = collections.Counter()
    folders = ("simtrain", *_OUTSIDE)

    for path in (path for folder in folders for path in (ROOT / folder).rglob("*")):
        room = room_of(path.relative_to(ROOT).as_posix())
        if room and path.suffix in _SUFFIXES:
            lines[room] += path.read_bytes().count(b"\n")

    return dict(lines)


def lines_of(revision: str) -> dict[str, int]:
    """Return the lines of each room in a revision."""
    lines: collections.Counter[str] = collections.Counter()
    pattern = ("git", "grep", "-c", "", revision, "--", *(f"*{suffix}" for suffix in _SUFFIXES))

    for row in subprocess.check_output(pattern, cwd=ROOT, text=True).splitlines():
        _, path, count = row.rsplit(":", 2)
        if room := room_of(path):
            lines[room] += int(count)

    return dict(lines)


def test_no_room_has_more_lines_than_its_budget() -> None:
    over = {
        room: f"{lines} lines, {BUDGET.get(room, 0)} allowed"
        for room, lines in lines_now().items()
        if lines > BUDGET.get(room, 0)
    }
    assert not over


def test_a_budget_is_lowered_with_its_room() -> None:
    now = lines_now()
    spare = {room: budget - now.get(room, 0) for room, budget in BUDGET.items()}
    assert not {room: lines for room, lines in spare.items() if lines > 0}, (
        "lower them: python -m tests.test_budget"
    )


def _lower() -> None:
    """Write the lines of each room that shrank."""
    now = lines_now()
    lowered = {room: min(budget, now.get(room, 0)) for room, budget in BUDGET.items()}
    rows = "".join(f'    "{room}": {lines},\n' for room, lines in lowered.items() if lines)
    file = pathlib.Path(__file__)
    text = file.read_text(encoding="utf-8")
    file.write_text(
        re.sub(r"(?s)^BUDGET = \{.*?^\}", lambda _: f"BUDGET = {{\n{rows}}}", text, flags=re.M),
        encoding="utf-8",
    )


def _print_difference(revision: str) -> None:
    """Print a table of the lines of each room, and of its difference to a revision."""
    now, before = lines_now(), lines_of(revision)
    print(f"{'room':14}{'lines':>8}{'since ' + revision[:10]:>18}")

    for room in sorted(now.keys() | before.keys()):
        difference = now.get(room, 0) - before.get(room, 0)
        print(f"{room:14}{now.get(room, 0):8}{difference:+18}")


if __name__ == "__main__":
    _print_difference(sys.argv[1]) if len(sys.argv) > 1 else _lower()
