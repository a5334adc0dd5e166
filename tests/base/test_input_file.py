"""Files of users are read in one place, up to a limit of size, and no device is read."""

import ast
import os
import pathlib

import pytest

from simtrain.base.input_file import open_input, read_bytes, read_text
from simtrain.errors import InputError
from tests.helpers.command_line import ROOT, refused

# Files that read what comes with the package or what the system provides, never a user's file.
OTHERS = {
    "simtrain/base/input_file.py": "is the place",
    "simtrain/base/resources.py": "hashes a profile that was read before",
    "simtrain/commands/completion.py": "lines of the package, and the startup file of a shell",
    "simtrain/commands/show.py": "documents of the package",
    "simtrain/guests/importing/capture.py": "what its recorders have written",
    "simtrain/render/html/document.py": "assets of the package",
    "simtrain/render/explanations/__init__.py": "texts of the package",
    "simtrain/base/plug_ins.py": "metadata of installed packages",
    "simtrain/guests/importing/table.py": "files of the package",
    "simtrain/guests/paper/explore.py": "a file of the package",
    "simtrain/guests/recording/child/main.py": "what its parent process has written",
    "calibrate/benchmarks/measure.py": "/proc/cpuinfo",
}
READS = {"read_text", "read_bytes"}


def reads_of_files(text: str) -> list[int]:
    """Return the lines on which a path's own methods or `open` read a file."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    # Files beside a module come with the package.
    own = "__file__"
    return [each.lineno for each in calls if reads_a_file(each) and own not in ast.unparse(each)]


def reads_a_file(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return isinstance(call.func, ast.Name) and call.func.id == "open"
    modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
    is_read = any(isinstance(mode, str) and mode.startswith("r") for mode in modes)
    return call.func.attr in READS or (call.func.attr == "open" and (is_read or not call.args))


@pytest.mark.parametrize("package", ["simtrain", "calibrate"])
def test_files_of_users_are_read_in_one_place(package: str) -> None:
    readers = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted((ROOT / package).rglob("*.py"))
        if (lines := reads_of_files(path.read_text("utf-8")))
    }
    assert readers.keys() <= OTHERS.keys(), readers


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
@pytest.mark.parametrize(
    "command",
    [
        "run {}",
        "show {}",
        "sweep {} -o out",
        "import {}",
        "validate {} --cluster h100_sxm",
        "compare table5_22b_full {}",
        "calibrate fit {} --base h100_sxm -o p.yaml",
    ],
)
def test_a_device_is_refused_by_every_command(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    errors = refused(*command.format("/dev/zero").split())
    assert "/dev/zero: E102 is a device, not a file" in errors or command == "show {}"


def test_a_file_is_read_up_to_its_limit(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert read_bytes(file, 100) == b"x" * 100
    with pytest.raises(OSError, match="has more than 0 KiB"):
        read_bytes(file, 99)
    with pytest.raises(InputError, match="E102 has more than"):
        read_text(file, 99)
    with pytest.raises(OSError), open_input(tmp_path):
        pass
