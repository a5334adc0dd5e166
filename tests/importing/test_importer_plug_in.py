"""An importer or exporter is added with a class in a file of any installed package."""

import pathlib

import pytest

from tests.helpers.command_line import ROOT
from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

NEW_EXPORTER = '''
"""Jobs of a made-up trainer."""

from simtrain.importing.exporters import Exporter


class TinyJob(Exporter):
    """Writes a tiny job."""

    name = "tiny"

    def write(self, scenario):
        """Return the keys."""
        return f"[tiny]\\nlayers = {scenario.model.num_layers}\\n"
'''


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with one more importer and one more exporter."""
    importer = (ROOT / "tests" / "helpers" / "tiny_importer.py").read_text("utf-8")
    files = {"importer.py": importer, "exporter.py": NEW_EXPORTER}
    parts = {"importers": {"tiny": "importer:Tiny"}, "exporters": {"tiny": "exporter:TinyJob"}}
    return Outsider.install(tmp_path_factory.mktemp("outsider"), files, parts)


@pytest.fixture
def job(tmp_path: pathlib.Path) -> str:
    """A file for the new importer."""
    file = tmp_path / "job.toml"
    sizes = "layers = 2\nwidth = 64\nheads = 8\nlength = 64\nbatch = 8\ntp = 4\n"
    file.write_text(f"[tiny]\n{sizes}", "utf-8")
    return str(file)


def test_files_of_a_new_importer_are_recognised(outsider: Outsider, job: str) -> None:
    machine = "--set", "cluster=h100_sxm"
    assert "tensor: 4" in outsider.call("import", job, *machine)
    assert "GPUs used: 4" in outsider.call("run", job, *machine)
    error = outsider.refused("sweep", job, "-o", "out")
    assert "E116 this is a tiny job" in error and f"simtrain import {job}" in error


def test_a_new_exporter_has_a_command(outsider: Outsider) -> None:
    assert outsider.call("export", "--to", "tiny", "llama3_8b") == "[tiny]\nlayers = 32\n"
    assert "tiny" in outsider.refused("export", "llama3_8b")
