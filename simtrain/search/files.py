"""Write the ranked scenarios of a search as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from simtrain.errors import InputError, Location
from simtrain.output_folder import make_folder, replacing, writing_to
from simtrain.provenance import provenance
from simtrain.scenario import Scenario
from simtrain.search.explorer import Candidate
from simtrain.search.result import SearchResult
from simtrain.search.words import num_gpus_in_words
from simtrain.units import format_bytes, format_seconds

_WHAT = "scenarios"
_FOUND = "# Found by simtrain"


def write_scenarios(result: SearchResult, folder: Path) -> list[Path]:
    """Write one scenario per ranked layout, named by the base and the rank.

    Raises:
        InputError: as `write_files`.
    """
    name = re.sub(r"[^\w.-]+", "_", result.base.name or "scenario")
    files = [
        CandidateFile(f"{name}_{rank:02d}", _description(result, rank, found), found)
        for rank, found in enumerate(result.ranked, start=1)
    ]
    return write_files(result.base, folder, files)


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """A scenario file to write: its name without ".yaml", a description, and the scenario."""

    name: str
    description: str
    found: Candidate


def write_files(base: Scenario, folder: Path, files: Sequence[CandidateFile]) -> list[Path]:
    """Write scenarios that were found from a base.

    Files of an older search are replaced.

    Raises:
        InputError: the folder cannot be written to, or has the base or another file, which no
            search wrote, under one of the names (E113).
    """
    paths = [folder / f"{file.name}.yaml" for file in files]
    places = base.positions.values.values()
    base_files = {Path(place.file).resolve() for place in places if place.line is not None}
    for path in paths:
        if path.resolve() in base_files:
            message = f"cannot write {_WHAT} here: it would replace the scenario that was searched"
            fix = "choose another folder for --out, or rename the scenario"
            raise InputError.of("E113", message, Location(str(path)), fix)
    yaml = YAML()
    make_folder(folder, _WHAT)
    with writing_to(folder, _WHAT):
        for path in paths:
            if path.exists() and not path.read_bytes().startswith(_FOUND.encode()):
                message = "the file exists, and no search wrote it"
                fix = "choose another folder for --out, or remove this file"
                raise InputError.of("E113", message, Location(str(path)), fix)
        for path, file in zip(paths, files, strict=True):
            scenario = file.found.scenario
            with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as opened:
                opened.write(_head(scenario.cluster))
                yaml.dump(_data(scenario, file.name, file.description), opened)
    return paths


def _head(cluster: str) -> str:
    made = provenance(cluster)
    version, digest = made["simtrain"], made["profile_sha256"]
    return f"{_FOUND} {version} with the profile {cluster} (SHA-256 {digest}).\n"


def _description(result: SearchResult, rank: int, found: Candidate) -> str:
    return (
        f"number {rank} by {result.objective.value} on "
        f"{num_gpus_in_words([found.scenario.num_gpus])}: "
        f"{format_seconds(found.run.iteration_time_s)}, "
        f"{format_bytes(found.evaluation.peak_bytes)} at its peak"
    )


def _data(scenario: Scenario, name: str, description: str) -> dict[str, Any]:
    named = {"name": name, "description": description}
    data = scenario.model_dump(by_alias=True, exclude_unset=True, exclude=set(named))
    if Path(scenario.cluster).is_file():
        data["cluster"] = str(Path(scenario.cluster).absolute())
    if list(data["recompute"]) == ["strategy"]:
        data["recompute"] = scenario.recompute.strategy
    return named | data
