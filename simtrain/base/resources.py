"""Find scenarios, sweeps, profiles, software stacks and documents by name or path."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from simtrain.base.version import VERSION
from simtrain.errors import InputError, Location, did_you_mean

_PACKAGE = Path(__file__).parents[1]
_SUFFIX = ".yaml"
_DOCUMENT = ".md"
_SUFFIXES = (_SUFFIX, ".yml", ".csv")
_LONGEST_NAME = 80
_SAME_MACHINE = 0.8  # similarity of a misspelt name; that of gb200 and b200_sxm is 0.62
_NOUNS = {
    "scenarios": "scenario",
    "sweeps": "sweep",
    "hw_profiles": "hardware profile",
    "software_stacks": "software stack",
}
# Kinds with too many names for an error message: the command that lists them.
_LISTED_BY = {"scenarios": "simtrain show scenarios", "sweeps": "simtrain show sweeps"}


def provenance(cluster: str) -> dict[str, str]:
    """Return the version, the profile's name or path, and the SHA-256 of its file."""
    digest = profile_sha256(cluster)
    return {"simtrain": VERSION, "profile": cluster, "profile_sha256": digest}


def profile_sha256(cluster: str) -> str:
    """Return the SHA-256 of the file of a hardware profile, given by name or path."""
    from hashlib import sha256

    return sha256(find_profile(cluster).read_bytes()).hexdigest()


def find_stack(name: str) -> Path:
    """Find the file of a shipped software stack by its name (else E101)."""
    shipped = _shipped(_folder("software_stacks"), name)
    if shipped is None:
        raise _unknown_name(name, "software_stacks", None)
    return shipped


def error_model_file() -> Path:
    """The file with the parameters of the model of errors (`simtrain.hardware.interval`)."""
    return _folder("hw_profiles") / "validated_on" / "error_model.yaml"


def document_files() -> dict[str, Path]:
    """Files of the written documents by name, such as "tutorial" and "how_to/validate"."""
    folder = _folder("docs")
    paths = sorted(folder.rglob(f"*{_DOCUMENT}"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def line_of(file: Path, key: str) -> str:
    """Return a text at the top level of a file that ships, without reading the rest; "" for none.

    There it is on one line, in double quotes or without quotes.
    """
    with file.open("r", encoding="utf-8") as lines:
        text = next((line for line in lines if line.startswith(f"{key}:")), ":")
    return text.partition(":")[2].strip().removeprefix('"').removesuffix('"')


def beside(name_or_path: str, file: str) -> str:
    """Resolve a path relative to the file that contains it; bare names stay unchanged."""
    if _is_bare(name_or_path) or os.path.isabs(name_or_path):
        return name_or_path
    return os.path.normpath(os.path.join(os.path.dirname(file), name_or_path))


def _is_bare(name: str) -> bool:
    return os.path.basename(name) == name and not name.endswith(_SUFFIXES)


def _folder(kind: str) -> Path:
    return _folder_of(_PACKAGE, kind)


@functools.lru_cache(maxsize=1024)  # sweeps look up profiles thousands of times per second
def _shipped(folder: Path, name: str) -> Path | None:
    path = Path(f"{folder}{os.sep}{name}{_SUFFIX}")
    return path if os.path.isfile(path) else None  # a name may be too long for a file


@functools.cache
def _folder_of(package: Path, kind: str) -> Path:
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / kind


def _names(kind: str) -> list[str]:
    return sorted(path.stem for path in _folder(kind).glob(f"*{_SUFFIX}"))


def _find(kind: str, name_or_path: str | Path, location: Location | None = None) -> Path:
    name = str(name_or_path)
    if not _is_bare(name) or os.path.isfile(name):
        if location is not None and not os.path.exists(name):
            from simtrain.base.input_file import similar_names_advice

            message = f"there is no file {name}"
            raise InputError.of("E101", message, location, similar_names_advice(Path(name)))
        return Path(name)
    shipped = _shipped(_folder(kind), name)
    if shipped is None:
        if os.path.isdir(name):
            return Path(name)  # reading it says what a folder is not
        raise _unknown_name(name, kind, location)
    return shipped


def _unknown_name(name: str, kind: str, location: Location | None) -> InputError:
    known = _names(kind)
    similar = _similar_machine if kind == "hw_profiles" else did_you_mean
    question = similar(name, known)
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    listing = _LISTED_BY.get(kind)
    names = f"{listing} lists the names" if listing else f"Known names: {', '.join(known)}"
    message = f'there is no {_NOUNS[kind]} named "{shown}"'
    fix = f"{question}{names}; or write the path of a YAML file"
    return InputError.of("E101", message, location, fix)


def _similar_machine(name: str, known: list[str]) -> str:
    """Suggest a profile whose name is misspelt or cut short; others are different machines."""
    lower = name.lower()
    begins = [name for name in known if name.startswith(lower)]
    return did_you_mean(name, begins) or did_you_mean(name, known, _SAME_MACHINE)


# Find a file by its path or by the name of a shipped one (else E101); names of shipped files.
find_scenario = functools.partial(_find, "scenarios")
find_sweep = functools.partial(_find, "sweeps")
find_profile = functools.partial(_find, "hw_profiles")
list_scenarios = functools.partial(_names, "scenarios")
list_sweeps = functools.partial(_names, "sweeps")
list_profiles = functools.partial(_names, "hw_profiles")
list_stacks = functools.partial(_names, "software_stacks")
