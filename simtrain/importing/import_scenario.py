"""Import a scenario from Python, as `simtrain import` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from simtrain.base.importer import importer_of_file
from simtrain.base.output_folder import as_path
from simtrain.commands.import_options import ImportOptions
from simtrain.errors import InputError
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.load import check_overrides


def import_scenario(
    source: str | Path,
    *,
    gpus: int | None = None,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    model: str | Path = "",
    config: str = "",
    ignore_unknown: bool = False,
) -> Scenario:
    """Convert a file of another tool to a scenario; `Scenario.notes` says what it leaves open.

    A model's config has no layout: set one with `overrides`, or find one with `search`. A scenario
    file is loaded.

    Args:
        source: a launch script, a log, a training config or a model's config.json, or its folder.
        gpus: the number of GPUs, in place of what the file says.
        overrides: fields to set, such as "parallelism.tensor=8".
        env: values of variables of a script that it does not decide, such as {"NNODES": "4"}.
        model: config.json of the model, or the script that trains it, if the source names another
            file.
        config: the config of the source, if it has several.
        ignore_unknown: leave out settings that simtrain does not know, and note them.

    Raises:
        InputError: the source cannot be read, has unknown or invalid settings, or an argument is
            invalid or has no effect on such a file.
    """
    path = as_path(source)
    check_overrides(overrides)
    options = _options(gpus, env, str(as_path(model)) if model else "", config)
    importer = importer_of_file(path)
    if importer is None:
        options.check_unused(str(path))
        return load_scenario(path, overrides)
    draft = options.reader(importer).draft(
        str(path), overrides, ignore_unknown=ignore_unknown, gpus=gpus
    )
    scenario: Scenario = draft.finished()[0]
    return scenario if scenario.name else scenario.replace({"name": path.stem})


def _options(
    gpus: int | None, env: Mapping[str, str] | None, model: str, config: str
) -> ImportOptions:
    """Return the arguments as options of the command line; refuse wrong types (E114)."""
    if gpus is not None and (type(gpus) is not int or gpus < 1):
        raise InputError.of("E114", f"gpus is {gpus!r}", fix="write a whole number of at least 1")
    variables = {} if env is None else env
    if not isinstance(variables, Mapping) or not all(
        isinstance(word, str) for pair in variables.items() for word in pair
    ):
        fix = 'write env={"NNODES": "4"}'
        raise InputError.of("E114", f"env is {env!r:.80}, not a dict of texts", fix=fix)
    return ImportOptions(gpus, dict(variables), model, config)
