"""Write the ranked scenarios of a search as files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simtrain.base.output_folder import make_folder, replacing, writing_to
from simtrain.base.resources import provenance
from simtrain.base.strict_yaml import yaml_text
from simtrain.errors import InputError, Location
from simtrain.scenario import Scenario
from simtrain.studies.search.run import Candidate, SearchResult
from simtrain.units import counted, format_bytes, format_seconds

_WHAT = "scenarios"


def write_scenarios(result: SearchResult, folder: Path) -> list[Path]:
    """Write one scenario per ranked layout, named by the base and the rank, and the refined one.

    Raises:
        InputError: the folder cannot be written to, or has one of the files (E113).
    """
    *names, refined = names_of_ranks(result.base, len(result.ranked))
    files: list[tuple[str, Candidate, str]] = [
        (name, layout, f"number {rank}")
        for rank, (name, layout) in enumerate(zip(names, result.ranked, strict=True), start=1)
    ]
    if result.refinement and result.refinement.changes:
        origin = f"refined from number {result.refinement.rank}"
        files.append((refined, result.refinement.layout, origin))
    paths = prepare_folder(folder, [name for name, *_ in files])
    with writing_to(folder, _WHAT):
        for path, (name, layout, origin) in zip(paths, files, strict=True):
            description = (
                f"{origin} by time on {counted(layout.scenario.num_gpus, 'GPU')}: "
                f"{format_seconds(layout.iteration_time_s)}, "
                f"{format_bytes(layout.peak_bytes)} at its peak"
            )
            made = provenance(layout.scenario.cluster)
            head = (
                f"# Found by simtrain search, version {made['simtrain']}, "
                f"profile {made['profile']} (SHA-256 {made['profile_sha256']}).\n"
            )
            with replacing(path) as unfinished:
                text = head + yaml_text(_data(layout.scenario, name, description))
                unfinished.write_text(text, "utf-8")
    return paths


def names_of_ranks(base: Scenario, top: int) -> list[str]:
    """Return the names of the files of a ranking and of the refined layout, without ".yaml"."""
    name = re.sub(r"[^\w.-]+", "_", base.name or "scenario")
    return [*(f"{name}_{rank:02d}" for rank in range(1, top + 1)), f"{name}_refined"]


def prepare_folder(folder: Path, names: list[str]) -> list[Path]:
    """Create a folder, and return the paths of scenario files with these names in it.

    Raises:
        InputError: as `write_scenarios`.
    """
    make_folder(folder, _WHAT)
    paths = [folder / f"{name}.yaml" for name in names]
    for path in filter(Path.exists, paths):
        fix = "choose another folder for -o, or remove the file"
        raise InputError.of("E113", "the file exists", Location(str(path)), fix)
    return paths


def _data(scenario: Scenario, name: str, description: str) -> dict[str, Any]:
    named = {"name": name, "description": description}
    data = scenario.model_dump(by_alias=True, exclude_unset=True, exclude=set(named))
    if Path(scenario.cluster).is_file():
        data["cluster"] = str(Path(scenario.cluster).absolute())
    if list(data["recompute"]) == ["strategy"]:
        data["recompute"] = scenario.recompute.strategy
    return named | data
