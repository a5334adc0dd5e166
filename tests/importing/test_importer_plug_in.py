"""An importer or exporter is added with a class in a file of any installed package."""

import pathlib

import pytest

from tests.helpers.command_line import ROOT
from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

NEW_FILE = '''
"""Jobs of a made-up trainer: lines of a name and a number."""

import re

from simtrain.base.file_kinds import FileKind, import_line
from simtrain.base.importer import Importer

FIELDS = {"LAYERS": "model.num_layers", "WIDTH": "model.hidden_size", "TP": "parallelism.tensor"}


class Toy(Importer):
    """Convert a toy job to a scenario.

    Example: simtrain import toy toy.job --set cluster=h100_sxm
    """

    name = "toy"
    metavar = "TOYJOB"
    argument = "Job of the toy trainer."
    kinds = (
        FileKind("a toy job", re.compile(r"^LAYERS [0-9]", re.MULTILINE), import_line(name)),
    )

    def draft(self, request):
        """Return the draft of a scenario."""
        from simtrain.importing.draft import Draft
        from simtrain.importing.table import Table

        text = request.text(self)
        table = Table("word", "a toy job", {}, {}, frozenset())
        draft = Draft(request, "a toy job", "default", table, {})
        for name, value in (("num_attention_heads", 8), ("seq_length", 64), ("vocab_size", 128)):
            draft.set_because(f"model.{name}", value, "toy")
        draft.set_because("parallelism.data", 1, "toy")
        draft.set_because("batch", {"micro": 1, "global": 1}, "toy")
        draft.set_because("precision.compute", "bf16", "toy")
        for line in text.splitlines():
            name, value = line.split()
            draft.set_because(FIELDS[name], int(value), name)
        return draft
'''

NEW_EXPORTER = '''
"""Jobs of a made-up trainer."""

from simtrain.importing.exporters.exporter import Exporter


class ToyJob(Exporter):
    """Lines such as LAYERS 24."""

    name = "toy"
    text = """Write a toy job.

    Example: simtrain export toy llama3_8b --out toy.job
    """

    def write(self, scenario):
        """Return the lines."""
        return f"LAYERS {scenario.model.num_layers}\\n"
'''


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with one more importer and one more exporter."""
    files = {"importer.py": NEW_FILE, "exporter.py": NEW_EXPORTER}
    parts = {"importers": {"toy": "importer:Toy"}, "exporters": {"toy": "exporter:ToyJob"}}
    return Outsider.install(tmp_path_factory.mktemp("outsider"), files, parts)


@pytest.fixture
def job(tmp_path: pathlib.Path) -> str:
    """A file for the new importer."""
    file = tmp_path / "toy.job"
    file.write_text("LAYERS 2\nWIDTH 64\nTP 4\n", "utf-8")
    return str(file)


def test_a_new_importer_has_a_command(outsider: Outsider, job: str) -> None:
    assert "tensor: 4" in outsider.call("import", "toy", job)
    assert "GPUs used: 4" in outsider.call("run", job)
    assert "toy" in outsider.call("import", "--help")
    assert "Job of the toy trainer." in outsider.call("import", "toy", "--help")
    assert "simtrain import toy toy.job" in outsider.refused("import", "toy")
    assert "import toy" in outsider.refused("import", "toi", job)


def test_files_of_a_new_importer_are_recognised(outsider: Outsider, job: str) -> None:
    for command in ("import", "torchtitan", job), ("sweep", job, "--out", "out"):
        error = outsider.refused(*command)
        assert "E116 this is a toy job" in error and f"simtrain import toy {job}" in error
    assert "this is a scenario, not a toy job" in outsider.refused(
        "import", "toy", str(ROOT / "scenarios" / "gpt2_1_5b.yaml")
    )


def test_a_new_exporter_has_a_command(outsider: Outsider) -> None:
    assert outsider.call("export", "toy", "llama3_8b") == "LAYERS 32\n"
    assert "toy" in outsider.call("export", "--help")


def test_documents_list_a_new_importer(outsider: Outsider) -> None:
    page = outsider.call("docs", "reference/commands")
    assert "simtrain import toy" in page and "simtrain export toy" in page
