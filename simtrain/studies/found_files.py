"""Write the ranked scenarios of a search as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from simtrain.base.input_file import MOST_BYTES_OF_YAML, read_bytes
from simtrain.base.output_folder import check_readable, make_folder, replacing, writing_to
from simtrain.base.resources import provenance
from simtrain.base.strict_yaml import yaml_text
from simtrain.errors import InputError, Location
from simtrain.scenario import Scenario, load_unchecked
from simtrain.studies.search.result import Candidate, SearchResult
from simtrain.studies.search.space import num_gpus_in_words
from simtrain.units import format_bytes, format_seconds

_WHAT = "scenarios"
_FOUND = "# Found by simtrain"
_DIGEST = "# Replaced by the next search unless edited. SHA-256 of the lines below: "


def write_scenarios(result: SearchResult, folder: Path) -> list[Path]:
    """Write one scenario per ranked layout, named by the base and the rank; see `write_files`."""
    names = names_of_ranks(result.base, len(result.ranked))[:-1]
    files = [
        CandidateFile(name, _description(result, rank, candidate), candidate)
        for rank, (name, candidate) in enumerate(zip(names, result.ranked, strict=True), start=1)
    ]
    if result.refinement and result.refinement.changes:
        layout, rank = result.refinement.layout, result.refinement.rank
        (*_, name) = names_of_ranks(result.base, 0)
        files.append(
            CandidateFile(name, f"refined from {_description(result, rank, layout)}", layout)
        )
    return write_files(result.base, folder, files)


def names_of_ranks(base: Scenario, top: int) -> list[str]:
    """Return the names of the files of a ranking and of the refined layout, without ".yaml"."""
    name = file_name(base.name or "scenario")
    return [*(f"{name}_{rank:02d}" for rank in range(1, top + 1)), f"{name}_refined"]


def file_name(text: str) -> str:
    """Return the name of a file, without its suffix, for a text with any characters."""
    return re.sub(r"[^\w.-]+", "_", text)


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """A scenario file to write: its name without ".yaml", a description, and the scenario."""

    name: str
    description: str
    candidate: Candidate


def write_files(base: Scenario, folder: Path, files: Sequence[CandidateFile]) -> list[Path]:
    """Write scenarios that a search found from a base.

    Files of an older search on a base of this name are replaced and removed, unless they were
    edited: a mixture of two rankings would mislead.

    Raises:
        InputError: the folder cannot be written to, or has the base or another file, which no
            search wrote or which was edited, under one of the names (E113).
    """
    paths = prepare_folder(base, folder, [file.name for file in files])
    origin = f"{_FOUND} search {file_name(base.name or 'scenario')}"
    with writing_to(folder, _WHAT):
        for path, file in zip(paths, files, strict=True):
            with replacing(path) as unfinished:
                unfinished.write_bytes(_content(origin, file))
                check_readable(unfinished, path, load_unchecked)
        for path in set(folder.glob("*.yaml")).difference(paths):
            if path.is_file() and _origin(path) == origin:
                path.unlink()
    return paths


def prepare_folder(base: Scenario, folder: Path, names: Sequence[str]) -> list[Path]:
    """Create a folder, and return the paths of scenario files with these names in it.

    Raises:
        InputError: as `write_files`.
    """
    make_folder(folder, _WHAT)
    paths = [folder / f"{name}.yaml" for name in names]
    places = [place.value for place in base.positions.places.values()]
    base_files = {Path(place.file).resolve() for place in places if place.line is not None}
    with writing_to(folder, _WHAT):
        for path in paths:
            if path.resolve() in base_files:
                message = "it would replace the scenario that was searched"
                remedy = "rename the scenario"
            elif path.exists() and not _origin(path):
                message = "the file exists, and no search wrote it, or it was edited"
                remedy = "remove this file"
            else:
                continue
            fix = f"choose another folder for --out, or {remedy}"
            raise InputError.of("E113", message, Location(str(path)), fix)
    return paths


def _content(origin: str, file: CandidateFile) -> bytes:
    """Return a scenario file: its origin, the digest of the following lines, and these lines."""
    scenario = file.candidate.scenario
    text = yaml_text(_data(scenario, file.name, file.description))
    made = provenance(scenario.cluster)
    profile = f"profile {made['profile']} (SHA-256 {made['profile_sha256']})"
    lines = f"# Version {made['simtrain']}, {profile}.\n{text}".encode()
    return f"{origin}\n{_DIGEST}{sha256(lines).hexdigest()}\n".encode() + lines


def _origin(path: Path) -> str:
    """Return the first line of a file that a search wrote and nobody edited, else ""."""
    origin, digest, lines, *_ = (*read_bytes(path, MOST_BYTES_OF_YAML).split(b"\n", 2), b"", b"")
    if digest != f"{_DIGEST}{sha256(lines).hexdigest()}".encode():
        return ""
    return origin.decode(errors="replace")


def _description(result: SearchResult, rank: int, candidate: Candidate) -> str:
    return (
        f"number {rank} by {result.objective.name} on "
        f"{num_gpus_in_words([candidate.scenario.num_gpus])}: "
        f"{format_seconds(candidate.run.iteration_time_s)}, "
        f"{format_bytes(candidate.evaluation.peak_bytes)} at its peak"
    )


def _data(scenario: Scenario, name: str, description: str) -> dict[str, Any]:
    named = {"name": name, "description": description}
    data = scenario.model_dump(by_alias=True, exclude_unset=True, exclude=set(named))
    if Path(scenario.cluster).is_file():
        data["cluster"] = str(Path(scenario.cluster).absolute())
    if list(data["recompute"]) == ["strategy"]:
        data["recompute"] = scenario.recompute.strategy
    return named | data
