"""The scenarios, sweeps, profiles and software stacks of simtrain, and how a name finds one."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from simtrain.errors import InputError, Location, Problem, did_you_mean

_PACKAGE = Path(__file__).parent
_SUFFIX = ".yaml"
_SUFFIXES = (_SUFFIX, ".yml")
_LONGEST_NAME = 80


def find_scenario(name_or_path: str | Path, location: Location | None = None) -> Path:
    """The file of a scenario: a path, or the bare name of one that comes with simtrain.

    Raises:
        InputError: a bare name that no shipped scenario has; `location` is where it was written.
    """
    return _find(name_or_path, "scenarios", "scenario", location)


def find_sweep(name_or_path: str | Path) -> Path:
    """The file of a sweep: a path, or the bare name of one that comes with simtrain.

    Raises:
        InputError: a bare name that no shipped sweep has.
    """
    return _find(name_or_path, "sweeps", "sweep")


def find_profile(name_or_path: str | Path, location: Location | None = None) -> Path:
    """The file of a hardware profile: a path, or the bare name of a shipped one.

    Raises:
        InputError: a bare name that no shipped profile has; `location` is where it was written.
    """
    return _find(name_or_path, "hw_profiles", "hardware profile", location)


def find_stack(name: str) -> Path:
    """The file of a software stack that comes with simtrain.

    Raises:
        InputError: no shipped stack has this name.
    """
    if name not in list_stacks():
        raise InputError([_unknown_name(name, list_stacks(), "software stack", None)])
    return _folder("software_stacks") / f"{name}{_SUFFIX}"


def list_scenarios() -> list[str]:
    """The names of the scenarios that come with simtrain."""
    return _names(_folder("scenarios"))


def list_sweeps() -> list[str]:
    """The names of the sweeps that come with simtrain."""
    return _names(_folder("sweeps"))


def list_profiles() -> list[str]:
    """The names of the hardware profiles that come with simtrain."""
    return _names(_folder("hw_profiles"))


def list_stacks() -> list[str]:
    """The names of the software stacks that come with simtrain."""
    return _names(_folder("software_stacks"))


def beside(name_or_path: str, file: str) -> str:
    """A path that stands in a file, which is relative to that file; a bare name stays as it is."""
    if _is_bare(name_or_path) or os.path.isabs(name_or_path):
        return name_or_path
    return os.path.normpath(os.path.join(os.path.dirname(file), name_or_path))


def _is_bare(name: str) -> bool:
    return os.path.basename(name) == name and not name.endswith(_SUFFIXES)


def _folder(kind: str) -> Path:
    """The data folder: inside the package when installed, beside it in a source checkout."""
    return _folder_of(_PACKAGE, kind)


@functools.cache
def _folder_of(package: Path, kind: str) -> Path:
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / kind


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob(f"*{_SUFFIX}"))


def _find(name_or_path: str | Path, kind: str, noun: str, location: Location | None = None) -> Path:
    # Sweeps look profiles up thousands of times a second: os.path is faster than pathlib.
    name = str(name_or_path)
    if not _is_bare(name) or os.path.isfile(name):
        return Path(name)
    shipped = f"{_folder(kind)}{os.sep}{name}{_SUFFIX}"
    if not os.path.isfile(shipped):
        raise InputError([_unknown_name(name, _names(_folder(kind)), noun, location)])
    return Path(shipped)


def _unknown_name(name: str, known: list[str], noun: str, location: Location | None) -> Problem:
    question = _other_kind(name) or did_you_mean(name, known)
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return Problem(
        "E101",
        f'no {noun} is called "{shown}"',
        location,
        fix=f"{question}Known names: {', '.join(known)}; or give the path of a YAML file",
    )


def _other_kind(name: str) -> str:
    """What a name is that was taken for something else, as a sentence; "" if it is nothing."""
    if os.path.isfile(f"{name}{_SUFFIX}"):
        return f"did you mean {name}{_SUFFIX}? "
    kinds = {
        "scenarios": f"a scenario: simtrain run {name}",
        "sweeps": f"a sweep: simtrain sweep {name} --out results",
        "hw_profiles": f"a hardware profile: --set cluster={name}",
    }
    is_shipped = (what for kind, what in kinds.items() if name in _names(_folder(kind)))
    return next((f"{name} is {what}. " for what in is_shipped), "")
