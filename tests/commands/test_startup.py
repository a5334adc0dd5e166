"""Imports of commands: help imports no slow module, and a command only the modules it needs.

`python -m benchmarks.table simtrain` measures the time.
"""

import json

import pytest

import simtrain
from tests.helpers.command_line import ROOT, commands, spawn

pytestmark = pytest.mark.slow

SLOW = {
    *("duckdb", "matplotlib", "numba", "numpy", "pandas", "pyarrow", "pydantic"),
    *("scipy", "simpy", "torch", "yaml"),
}
# Groups of commands, and the slow modules that each group may import besides the groups before it.
GROUPS: dict[str, tuple[list[str], set[str]]] = {
    "help": (["--help", "show sweeps", *(f"{name} --help" for name in commands())], set()),
    "files": (
        ["run table5_22b_present --show schedule", "show h100_sxm"],
        {"numpy", "pydantic", "yaml"},
    ),
    "simulations": (
        [
            "run table5_22b_present",
            "run table5_22b_present --show memory",
            "cost table5_22b_present --tokens 1T",
            "reproduce table4",
        ],
        {"numpy", "simpy"},
    ),
    "search": (["search gpt2_1_5b --gpus 1"], {"numba", "scipy"}),  # numba imports scipy if it can
    # pyarrow imports pandas if it can.
    "sweep": (["sweep pipeline_bubble --workers 1 -o results"], {"pyarrow", "pandas", "duckdb"}),
}
# Run the groups one after another in one process, and print the imported modules after each.
RUN_GROUPS = """
import contextlib, io, json, sys
from simtrain.commands.cli import main

for commands in json.loads(sys.argv.pop()):
    for command in commands:
        sys.argv[1:] = command.split()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                main()
            except SystemExit as end:
                assert not end.code, command
    print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Run the groups, and return the modules that are imported after each."""
    groups = json.dumps([lines for lines, _ in GROUPS.values()])
    folder = tmp_path_factory.mktemp("startup")
    outcome = spawn("-c", RUN_GROUPS, groups, folder=folder, PYTHONPATH=str(ROOT))
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    return {name: set(json.loads(line)) for name, line in zip(GROUPS, lines, strict=True)}


@pytest.mark.parametrize("group", GROUPS)
def test_a_command_imports_only_what_it_needs(group: str, imported: dict[str, set[str]]) -> None:
    may_import: set[str] = set()
    for name, (_, added) in GROUPS.items():
        may_import |= added
        if name == group:
            break
    assert imported[group] & SLOW <= may_import


# The most modules that a command imports, and the most other files that it opens.
MOST = {
    "--version": (40, 0),
    "--help": (185, 0),
    "show E310": (125, 9),
    "show scenarios": (160, 50),
    "run --help": (90, 0),
    "llama3_70b": (540, 31),
    "run llama": (155, 0),  # completion
}
COUNTED = """
import sys
before, files = {*sys.modules}, set()
OTHERS = (".py", ".so", "entry_points.txt")

def hear(event, arguments):
    name = arguments[0] if event == "open" else ".pyc"  # a number while bytecode is written
    if isinstance(name, str) and ".pyc" not in name and not name.endswith(OTHERS):
        files.add(name)

from simtrain.__main__ import main
sys.addaudithook(hear)
try:
    main()
finally:
    new = {*sys.modules} - before
    print(*files, len(new), len(files), "simtrain.commands.search" in new, file=sys.stderr)
"""


@pytest.mark.parametrize(("command", "most"), MOST.items())
def test_a_command_imports_and_opens_little(command: str, most: tuple[int, int]) -> None:
    environment = {"_SIMTRAIN_COMPLETE": "bash"} if command == "run llama" else {}
    outcome = spawn("-c", COUNTED, *command.split(), PYTHONPATH=str(ROOT), **environment)
    num_modules, num_files, imports_others = outcome.stderr.split()[-3:]
    assert int(num_modules) <= most[0] and int(num_files) <= most[1], outcome.stderr
    assert imports_others == str(command == "--help")


@pytest.mark.parametrize("name", simtrain.__all__)
def test_the_package_exports_every_name(name: str) -> None:
    assert name in dir(simtrain)
    assert getattr(simtrain, name) is not None


IMPORT_ALONE = """
import simtrain, sys
assert not {"simtrain.studies", "simtrain.scenario"} & sys.modules.keys()
print(simtrain.search.__name__, simtrain.models.llama3_70b)
"""


def test_rooms_of_the_package_are_imported_at_their_first_use() -> None:
    outcome = spawn("-c", IMPORT_ALONE, PYTHONPATH=str(ROOT))
    assert (outcome.exit_code, outcome.stderr) == (0, "")


def test_the_package_lists_its_public_names_alone() -> None:
    assert dir(simtrain) == sorted(simtrain.__all__)


INTERRUPTED_AT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

MODULE = sys.argv.pop()
sys.argv += ["run", "gpt2_1_5b"]
sys.meta_path.insert(0, Interrupt())
runpy.run_module("simtrain", run_name="__main__")
"""


@pytest.mark.parametrize(
    "module",
    [
        "simtrain.commands.cli",
        "simtrain.commands.declare",
        "simtrain.commands.run",
        "simtrain.scenario",
        "simtrain.studies.simulation",
    ],
)
def test_ctrl_c_is_quiet_while_modules_are_imported(module: str) -> None:
    outcome = spawn("-c", INTERRUPTED_AT, module, PYTHONPATH=str(ROOT))
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (130, "", "")
