"""A package of thirty lines adds parts by its entry points, without a line in the checkout."""

import pathlib

import pytest

from tests.helpers.outsider import Outsider

SCHEDULE = """
from simtrain.schedules.one_f_one_b import OneFOneB
from simtrain.schedules.schedule import Schedule


class Eager(OneFOneB):
    name = "eager"

    def build(self, p, m, n):
        return Schedule.of(self.name, self.placement(p, m), n, super().build(p, m, n).ranks)
"""
IMPORTER = """
import re
from dataclasses import replace

from simtrain.base.importer import FileKind
from simtrain.base.importer import Importer

ARGUMENTS = (
    "--num-layers {} --hidden-size 64 --num-attention-heads 8 --seq-length 64 --vocab-size 128"
    " --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 8 --bf16"
)


class Toy(Importer):
    "Convert a job."

    name = "toy"
    kinds = (FileKind("a toy job", re.compile(r"^DEPTH [0-9]+")),)

    def draft(self, request):
        from simtrain.guests.importing.importers import Megatron

        depth = request.text(self).split()[1]
        return Megatron().draft(replace(request, source=ARGUMENTS.format(depth)))
"""
COMMAND = '''
from simtrain.commands.options import ScenarioArgument
from simtrain.commands.printing import emit


def depth(scenario: ScenarioArgument) -> None:
    """Print the number of layers."""
    from simtrain.scenario import load_scenario

    emit(f"{load_scenario(scenario).model.num_layers} layers\\n")
'''


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    return Outsider.install(
        tmp_path_factory.mktemp("outsider"),
        {"schedule.py": SCHEDULE, "importer.py": IMPORTER, "command.py": COMMAND},
        {
            "schedules": {"eager": "schedule:Eager"},
            "importers": {"toy": "importer:Toy"},
            "commands": {"depth": "command:depth"},
        },
    )


@pytest.mark.slow
def test_an_installed_package_adds_parts(outsider: Outsider) -> None:
    assert outsider.call("depth", "gpt2_1_5b") == "48 layers\n"
    job = outsider.folder / "toy.job"
    job.write_text("DEPTH 4\n", "utf-8")
    words = ("schedule=eager", "parallelism.pipeline=2", "overlap.pipeline=false")
    words = (*words, "parallelism.data=1", "cluster=h100_sxm")
    settings = [word for each in words for word in ("--set", each)]
    printed = outsider.call("run", str(job), *settings)
    assert ", eager, " in printed
    help_text = outsider.call("--help")
    assert "depth" in help_text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "place", "reason"),
    [
        ("schedules", "parts:missing", "has no attribute 'missing'"),
        ("schedules", "nowhere:X", "No module named 'outsider.nowhere'"),
        ("schedules", "parts:GPipe", 'there is a part named "gpipe" already'),
        ("schedules", "old:Old", "Old declares blocks, which is computed: remove it"),
        ("importers", "parts:GPipe", "it is no simtrain.base.importer.Importer"),
        ("commands", "parts:GPipe", 'there is a command named "run" already'),
    ],
)
def test_a_part_that_cannot_be_used_is_an_error(
    kind: str, place: str, reason: str, tmp_path: pathlib.Path
) -> None:
    text = "from simtrain.schedules.one_f_one_b import GPipe\n"
    files = {"parts.py": text, "old.py": f"{text}class Old(GPipe):\n    blocks = True\n"}
    broken = Outsider.install(tmp_path, files, {kind: {"run": place}})
    # Importers are imported for files of other tools only.
    words = ("import", "x") if kind == "importers" else ("run", "gpt2_1_5b")
    error = broken.refused(*words)
    assert "E740 simtrain." in error and reason in error
    assert "fix: mend the package outsider, or remove it: pip uninstall outsider" in error
