"""The layout that docs/design.md promises: which room may import which."""

import ast
import functools
import itertools
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter

from simtrain.base.extras import EXTRA_OF
from tests.helpers.command_line import ROOT

PACKAGE = ROOT / "simtrain"
# Many rooms use these; the list in docs/design.md omits them.
LOWEST = {"errors", "units", "base"}
# Each room and the rooms that it imports, which are listed above it.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "base": {"errors", "units"},
    "schedules": {"errors", "base"},
    "scenario": {"errors", "units", "base", "schedules"},
    "hardware": {"errors", "units", "base", "scenario"},
    "workload": {"errors", "base", "scenario"},
    "durations": {"base", "hardware", "workload"},
    "engine": {"errors", "base"},
    "iteration": {
        *("errors", "units", "base", "schedules", "scenario", "hardware", "workload"),
        *("durations", "engine"),
    },
    "studies": {
        *("errors", "units", "base", "schedules", "scenario", "hardware", "workload"),
        *("engine", "iteration"),
    },
    "views": {*("units", "base", "schedules", "scenario", "hardware", "iteration", "studies")},
    "render": {
        *("errors", "units", "base", "schedules", "scenario", "workload", "engine"),
        *("iteration", "studies", "views"),
    },
    "commands": {
        *("errors", "units", "base", "scenario", "hardware"),
        *("iteration", "studies", "views", "render"),
    },
}
# Guests plug in by entry points, as other packages do: no room imports one.
GUESTS: dict[str, set[str]] = {
    "importing": {
        *("errors", "base", "schedules", "scenario", "hardware"),
        *("iteration", "studies", "commands"),
    },
    "paper": {
        *("units", "base", "schedules", "scenario", "hardware", "workload", "durations"),
        *("iteration", "studies", "views", "render", "commands"),
    },
    "traces": {
        *("errors", "units", "base", "workload", "engine", "iteration", "views"),
        "commands",
    },
    "recording": {"errors", "base", "scenario", "workload", "commands"},
    "related_work": {"schedules"},
}
CHILD = "simtrain/guests/recording/child"
"""Modules that only the process of a recorded program runs, after torch is known to exist."""
# The front of the package may import every room.
FRONT = {"__init__", "__main__"}
CALIBRATION = LOWEST | {
    *("scenario", "hardware", "workload", "durations", "schedules", "iteration", "studies"),
    *("importing", "views", "render", "commands", "traces"),
}
# Each package of calibrate and the packages that it imports, which are listed above it.
CALIBRATE: dict[str, set[str]] = {
    "records": set(),
    "torch_model": set(),
    "tables": set(),
    "memory": {"tables", "torch_model"},
    "benchmarks": {"records", "torch_model", "memory"},
    "fit": {"records", "tables"},
    "validation": {"records", "tables"},
    "validate": {"records", "validation"},
    "intervals": set(),
    "app": {"records", "memory", "benchmarks", "fit"},
    "__main__": set(),
}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def packages_of(requirements: list[str]) -> list[str]:
    """Return the import names of the packages of some requirements."""
    names = [re.split(r"\W", name)[0] for name in requirements]
    return ["yaml" if name == "pyyaml" else name for name in names]


def files(folder: str) -> list[pathlib.Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def room_of(path: pathlib.Path) -> str:
    return room_among(path.relative_to(PACKAGE).parts).removesuffix(".py")


def room_among(parts: Sequence[str]) -> str:
    """Return the room of a path or a dotted name without the package: a room, or a guest."""
    return next(part for part in parts if part != "guests")


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: pathlib.Path) -> list[ast.AST]:
    return [*ast.walk(parsed(path))]


@functools.cache
def imported(path: pathlib.Path, *, at_once: bool = False) -> frozenset[str]:
    """Return the dotted names of modules that a file imports; `at_once` skips
    imports in functions.
    """
    return frozenset(_imported(path, at_once))


def _imported(path: pathlib.Path, at_once: bool) -> Iterator[str]:
    for node in run_at_once(parsed(path)) if at_once else nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            package = node.module or ""
            names = [alias.name for alias in node.names]
            yield from (
                [f"simtrain.{name}" for name in names] if package == "simtrain" else [package]
            )


def run_at_once(tree: ast.Module) -> Iterator[ast.AST]:
    """Return the nodes that run when a program imports the module."""
    for node in tree.body:
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not is_for_types and not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from ast.walk(node)


def rooms_used(path: pathlib.Path, *, at_once: bool = False) -> set[str]:
    parts = [name.split(".") for name in imported(path, at_once=at_once)]
    ours = [others for package, *others in parts if package == "simtrain" and others]
    return {room_among(others) for others in ours}


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_room_is_in_the_table_and_uses_only_rooms_above_it() -> None:
    assert {room_of(path) for path in files("simtrain")} == ROOMS.keys() | GUESTS.keys() | FRONT
    above: set[str] = set()
    for room, may_use in ROOMS.items():
        assert may_use <= above, room
        above.add(room)


def test_the_design_shows_the_rooms_in_this_order() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^schedules -> .*$", text, re.MULTILINE)
    assert sentence.split(" -> ") == [room for room in ROOMS if room not in LOWEST]


def test_a_person_can_keep_the_rooms_in_mind() -> None:
    entries = {path.name for path in PACKAGE.iterdir() if path.is_file() or any(path.rglob("*.py"))}
    assert len(entries) <= 18, sorted(entries)
    assert len(GUESTS) <= 5


def test_imports_flow_one_way() -> None:
    """The table lists actual imports only, so a new dependency is added to it on purpose."""
    used: dict[str, set[str]] = {room: set() for room in (*ROOMS, *GUESTS)}
    for path in files("simtrain"):
        room = room_of(path)
        if room not in FRONT:
            used[room] |= rooms_used(path) - {room}
    assert used == ROOMS | GUESTS


def test_texts_name_modules_of_rooms_that_may_be_imported() -> None:
    """A module that a text names is imported too, which `imported` does not see.

    The page on JSON names classes of guests, too.
    """
    place, tables = re.compile(r"simtrain\.[a-z_]+\.[\w.]+"), ROOMS | GUESTS
    for path in files("simtrain"):
        if room_of(path) in FRONT:
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = place.fullmatch(node.value.replace(":", "."))
                room = named and room_among(node.value.replace(":", ".").split(".")[1:])
                assert room in {None, room_of(path), *tables[room_of(path)], *GUESTS}, (
                    path,
                    node.value,
                )


def test_a_scenario_is_simulated_on_a_machine_that_is_loaded_already() -> None:
    """The front loads profiles: nothing on the way from a scenario to its result does."""
    modules = {module_of(path): path for path in files("simtrain") if room_of(path) not in FRONT}
    used = {module: set(imported(path)) & modules.keys() for module, path in modules.items()}
    assert "simtrain.hardware.load" not in reached("simtrain.studies.on_machine", used)


def test_no_files_are_in_a_circle() -> None:
    """Imports in functions and for types count: readers follow them too."""
    modules = {module_of(path): path for path in files("simtrain") if room_of(path) not in FRONT}
    used = {module: set(imported(path)) & modules.keys() for module, path in modules.items()}
    after = {module: reached(module, used) for module in modules}
    for module, others in after.items():
        assert sorted(other for other in others if module in after[other]) == []


def test_any_module_may_be_imported_first() -> None:
    """What importing a module runs comes before it: a worker or an outsider starts anywhere.

    Importing `a.b` runs `a` too, unless the importing module is part of `a`.
    """
    modules = {module_of(path): path for path in files("simtrain") if room_of(path) not in FRONT}
    before = {
        module: {
            package
            for name in imported(path, at_once=True)
            for package in packages_and(name)
            if package in modules and not module.startswith(f"{package}.")
        }
        - {module}
        for module, path in modules.items()
    }
    assert len(list(TopologicalSorter(before).static_order())) == len(modules)


def packages_and(name: str) -> Iterator[str]:
    """Return the dotted names of a module's packages, and its own."""
    yield from itertools.accumulate(name.split("."), "{}.{}".format)


def module_of(path: pathlib.Path) -> str:
    """Return the dotted name of a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def reached(module: str, used: dict[str, set[str]]) -> set[str]:
    """Return the modules that a module imports, and those that these import, and so on."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        new = used[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def test_nothing_is_imported_that_is_not_installed_with_it() -> None:
    """simtrain imports its dependencies; optional packages only in functions. Nothing imports
    calibrate, whose commands are plug-ins.
    """
    core = sys.stdlib_module_names | {"simtrain", *packages_of(PROJECT["dependencies"])}
    for path in files("simtrain"):
        usual = core | ({"torch"} if name_of(path).startswith(CHILD) else set())
        assert {name.split(".")[0] for name in imported(path, at_once=True)} <= usual, path
        assert {name.split(".")[0] for name in imported(path)} <= (
            usual | EXTRA_OF.keys() | {"pandas"}
        ), path


def test_the_extras_are_those_that_errors_name() -> None:
    extras = PROJECT["optional-dependencies"]
    named = {
        name: [package for package, extra in EXTRA_OF.items() if extra == name] for name in extras
    }
    for name in extras.keys() - {"all", "dev", "docs"}:
        assert sorted(named[name]) == sorted(set(packages_of(extras[name])) - {"simtrain"})
    (everything,) = extras["all"]
    assert set(re.split(r"\W", everything)) - {"simtrain", ""} == extras.keys() - {
        "all",
        "dev",
        "docs",
    }


def test_calibrate_imports_no_reports() -> None:
    assert set().union(*map(rooms_used, files("calibrate"))) <= CALIBRATION


def test_packages_of_calibrate_import_only_those_above_them() -> None:
    used: dict[str, set[str]] = {}
    for path in files("calibrate"):
        package = path.relative_to(ROOT / "calibrate").parts[0].removesuffix(".py")
        names = [name.split(".") for name in imported(path)]
        used.setdefault(package, set()).update(
            name[1] for name in names if name[0] == "calibrate" and len(name) > 1
        )
    del used["__init__"]
    assert {package: names - {package} for package, names in used.items()} == CALIBRATE
    packages = list(CALIBRATE)
    for place, package in enumerate(packages):
        assert CALIBRATE[package] <= set(packages[:place]), package


def names_bound(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names of variables and parameters that a file binds, but for fields of classes."""
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    statements = [statement for each in classes for statement in each.body]
    fields = {each.target for each in statements if isinstance(each, ast.AnnAssign)}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_variables_are_named_after_what_they_hold() -> None:
    """A pronoun makes readers look up what it stands for."""
    pronouns = {"one", "found", "held", "given", "own"}
    assert [
        name_of(path)
        for folder in ("simtrain", "calibrate")
        for path in files(folder)
        if pronouns & set(names_bound(nodes_of(path)))
    ] == []
