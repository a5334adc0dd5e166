"""Import a scenario from Python, as `simtrain import` does."""

from __future__ import annotations

from pathlib import Path

from simtrain.base.importer import ImportRequest, importer_of_file
from simtrain.base.request import takes
from simtrain.base.values import replace
from simtrain.guests.importing.loading import check_machine, prepared
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.check import check_overrides
from simtrain.studies.changes import with_gpus


@takes(ImportRequest)
def import_(request: ImportRequest) -> Scenario:
    """Convert a file of another tool to a scenario; `Scenario.notes` says what it leaves open.

    A model's config has no layout: set one with `overrides`, or find one with `search`. A scenario
    file is loaded.

    Raises:
        InputError: the source cannot be read, has unknown or invalid settings or does not say its
            machine, or an argument is invalid or has no effect on such a file.
    """
    check_overrides(request.overrides)
    path = Path(request.source)
    model = str(Path(request.model)) if request.model else ""
    request = replace(request, source=str(path), model=model)
    importer = importer_of_file(path)
    if importer is None:
        request.check_read_by(None)
        return with_gpus(load_scenario(path, request.overrides), request.gpus)
    draft = importer.draft(prepared(request, importer))
    scenario: Scenario = draft.finished()[0]
    check_machine(draft, request.file, in_python=True)
    return scenario if scenario.name else scenario.replace({"name": path.stem})
