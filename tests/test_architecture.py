"""The layout that docs/design.md promises: which room knows of which."""

import ast
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest
from command_line import ROOT

PACKAGE = ROOT / "simtrain"
READING = {"version", "errors", "units", "strict_yaml", "resources"}
# Each room and the rooms that it may import, all of them above it.
ROOMS: dict[str, set[str]] = {
    "version": set(),
    "errors": set(),
    "units": set(),
    "strict_yaml": {"errors"},
    "resources": {"errors"},
    "scenario": READING,
    "hardware": READING | {"scenario"},
    "workload": READING | {"scenario"},
    "costs": READING | {"hardware", "workload"},
    "schedules": READING,
    "engine": READING,
    "programs": READING | {"scenario", "workload", "costs", "schedules", "engine"},
    "iteration": READING
    | {"scenario", "hardware", "workload", "costs", "schedules", "engine", "programs"},
    "memory": READING
    | {"scenario", "hardware", "workload", "schedules", "engine", "programs", "iteration"},
    "pictures": READING,
    "report": READING
    | {"scenario", "hardware", "schedules", "engine", "programs", "iteration", "memory"}
    | {"pictures"},
    "simulation": READING
    | {"scenario", "hardware", "workload", "costs", "schedules", "engine", "programs"}
    | {"iteration", "memory", "report"},
    "evaluation": READING
    | {"scenario", "hardware", "engine", "programs", "iteration", "memory", "report"}
    | {"simulation"},
    "sweep": READING | {"scenario", "hardware", "report", "evaluation"},
    "plots": READING | {"pictures"},
    "search": READING
    | {"scenario", "hardware", "workload", "costs", "memory", "pictures", "report", "evaluation"},
    "cost": READING | {"scenario", "hardware"},
    "paper": READING
    | {"scenario", "hardware", "workload", "schedules", "iteration", "memory", "report"}
    | {"pictures", "simulation"},
    "commands": READING
    | {"scenario", "simulation", "sweep", "search", "cost", "plots", "pictures"},
    "cli": READING
    | {"scenario", "hardware", "schedules", "engine", "memory", "pictures", "report"}
    | {"simulation", "paper", "commands"},
}
# What stands at the front of the package may use all of it.
FRONT = {"__init__", "__main__"}
CALIBRATION = READING | {
    *("scenario", "hardware", "workload", "costs", "schedules", "engine", "programs"),
    *("iteration", "memory", "simulation", "pictures"),
}
# What is imported of extras, and where.
EXTRAS = {"simtrain/sweep/ray_executor.py": {"ray"}}
MAX_LINES = 400


def files(folder: str) -> list[pathlib.Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def room_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: pathlib.Path) -> Iterator[str]:
    """Dotted names of the modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            package = node.module or ""
            names = [alias.name for alias in node.names]
            yield from (
                [f"simtrain.{name}" for name in names] if package == "simtrain" else [package]
            )


def rooms_used(path: pathlib.Path) -> set[str]:
    parts = [name.split(".") for name in imported(path)]
    return {room for package, room, *_ in (p for p in parts if len(p) > 1) if package == "simtrain"}


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_room_is_in_the_table_and_uses_only_rooms_above_it() -> None:
    assert {room_of(path) for path in files("simtrain")} == ROOMS.keys() | FRONT
    above: set[str] = set()
    for room, may_use in ROOMS.items():
        assert may_use <= above, room
        above.add(room)


def test_the_design_shows_the_rooms_in_this_order() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^scenario -> .*$", text, re.MULTILINE)
    assert sentence.split(" -> ") == [room for room in ROOMS if room not in READING]


@pytest.mark.parametrize("path", files("simtrain"), ids=name_of)
def test_imports_flow_one_way(path: pathlib.Path) -> None:
    room = room_of(path)
    if room not in FRONT:
        assert rooms_used(path) <= ROOMS[room] | {room}


@pytest.mark.parametrize("path", files("simtrain"), ids=name_of)
def test_nothing_is_imported_that_is_not_installed_with_it(path: pathlib.Path) -> None:
    """Neither torch nor calibrate: simtrain, its dependencies, and an extra where it is used."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dependencies = {re.split(r"\W", name)[0] for name in project["dependencies"]}
    packages = {name.split(".")[0] for name in imported(path)} - EXTRAS.get(name_of(path), set())
    assert packages <= sys.stdlib_module_names | dependencies | {"simtrain"}


@pytest.mark.parametrize("path", files("calibrate"), ids=name_of)
def test_calibrate_knows_no_reports(path: pathlib.Path) -> None:
    assert rooms_used(path) <= CALIBRATION


def test_assert_is_only_for_our_own_bugs() -> None:
    """Bad input is an InputError. What is asserted: that it says what is wrong, and that what a
    scenario leaves open has been chosen, and what it needs of its profile found, before it is
    simulated, and that all that is kept goes; that what a search found was run."""
    found = [
        (name_of(path), ast.unparse(node.test))
        for path in files("simtrain")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert found == [
        ("simtrain/costs/host.py", "link is not None"),
        ("simtrain/costs/price.py", "kernel is not None"),
        ("simtrain/errors.py", "self.problems"),
        ("simtrain/hardware/profile.py", "self.intra_node is not None"),
        ("simtrain/hardware/profile.py", "self.inter_node is not None"),
        ("simtrain/iteration.py", "isinstance(kept, int)"),
        ("simtrain/memory/working.py", "not live"),
        ("simtrain/search/looker.py", "self.evaluation.run is not None"),
        ("simtrain/search/looker.py", "self.run.breakdown is not None"),
        ("simtrain/search/problems.py", "nearest is not None"),
        ("simtrain/workload/recompute.py", "policy.strategy != 'auto'"),
    ]


@pytest.mark.parametrize("folder", ["simtrain", "calibrate", "benchmarks", "tests"])
def test_a_file_is_short_enough_to_be_read(folder: str) -> None:
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in files(folder)}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
