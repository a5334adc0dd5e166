"""`simtrain export --nearest`: what a framework cannot say becomes the nearest that it can."""

import pathlib

import pytest

from simtrain.base.importer import importers
from simtrain.base.resources import list_scenarios
from simtrain.errors import InputError
from simtrain.importing.exporters import EXPORTERS
from simtrain.importing.torchtitan.reader import flavor_of_model
from simtrain.scenario import Scenario, load_scenario
from tests.helpers.command_line import call, refused
from tests.helpers.imported import import_with

OF_NAME = {importer.name: importer for importer in importers()}
EXPORTER_OF = {exporter.name: exporter for exporter in EXPORTERS.values()}
LAYOUTS = [
    "memory.zero_stage=1",
    "memory.zero_stage=2",
    "parallelism.pipeline=2,memory.zero_stage=1",
    "parallelism.pipeline=2,schedule=gpipe",
    "parallelism.pipeline=2,overlap.pipeline=false,schedule=zb_h1",
]


def again(name: str, text: str, folder: pathlib.Path) -> Scenario:
    """Import the text of an exporter."""
    file = folder / f"job{'.toml' if name == 'torchtitan' else '.sh'}"
    file.write_text(text, "utf-8")
    return import_with(OF_NAME[name], str(file), ["cluster=h100_sxm"])[0]


@pytest.mark.ci
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_known_model_has_a_nearest_job(
    layout: str, tmp_path: pathlib.Path
) -> None:
    names = [name for name in list_scenarios() if flavor_of_model(load_scenario(name).model)]
    written = 0
    for name in names:
        try:
            scenario = load_scenario(name, layout.split(","))
        except InputError:
            continue
        text = EXPORTER_OF["torchtitan"].write(scenario, nearest=True)
        imported = again("torchtitan", text, tmp_path)
        assert imported.memory.zero_stage in (0, 3)
        assert (imported.memory.zero_stage == 3) == (scenario.memory.zero_stage > 0)
        assert imported.num_gpus == scenario.num_gpus
        written += 1
    assert written >= 2


def test_what_changes_is_named_and_the_option_is_suggested(tmp_path: pathlib.Path) -> None:
    words = "export", "--to", "torchtitan", "llama3_70b"
    assert "or write the nearest job with --nearest" in refused(*words)
    text = call(*words, "--nearest").stdout
    assert "# Changed to the nearest layout that jobs of torchtitan have:" in text
    assert "# - memory.zero_stage: 1, after an import 3" in text
    assert again("torchtitan", text, tmp_path).memory.zero_stage == 3


@pytest.mark.parametrize("name", list_scenarios())
def test_errors_of_exports_name_no_file_of_ours(name: str) -> None:
    scenario = load_scenario(name)
    for exporter in EXPORTERS.values():
        try:
            exporter.write(scenario, nearest=True)
        except InputError as error:
            assert all(problem.code == "E882" for problem in error.problems)
