"""The house: data flows one way, and every room is small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From left to right; a room imports only rooms to its left, and its own.
ROOMS = [
    "errors",
    "units",
    "strict_yaml",
    "resources",
    "scenario",
    "hardware",
    "workload",
    "costs",
    "schedules",
    "engine",
    "programs",
    "report",
    "iteration",
    "paper",
    "cli",
]
MAX_LINES = 400
FILES = sorted((ROOT / "simtrain").rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "simtrain").parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_flow_one_way(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    used = {name.split(".")[1] for name in imported(path) if name.startswith("simtrain.")}
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    assert used <= allowed, f"{room} imports {sorted(used - allowed)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_simulator_knows_neither_torch_nor_calibrate(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path)} & {"torch", "calibrate", "scipy"}


@pytest.mark.parametrize(
    "path",
    [*FILES, *sorted((ROOT / "calibrate").rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_are_one_concept(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
