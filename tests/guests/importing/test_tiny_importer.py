"""An importer of a tiny format in one file of forty lines says what is wrong with each mistake."""

import inspect

import pytest

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError
from simtrain.guests.importing.table import WordTable
from tests.helpers import tiny_importer
from tests.helpers.imported import import_with, written
from tests.helpers.tiny_importer import Tiny

JOB = """\
[tiny]
layers = 4
width = 512
heads = 8
length = 1024
tp = 2
batch = 8
lr = 0.1
"""


def test_one_file_of_forty_lines_imports_a_format() -> None:
    assert len(inspect.getsource(tiny_importer).splitlines()) <= 40
    scenario, text = import_with(Tiny(), written("job.toml", JOB), gpus=8)
    assert (scenario.model.num_layers, scenario.model.hidden_size) == (4, 512)
    assert (scenario.parallelism.tensor, scenario.parallelism.data) == (2, 4)
    assert scenario.model.normalization == "rms_norm"
    assert "num_layers: 4                   # tiny.layers, line 2\n" in text
    assert "micro: 1                        # default of the tiny trainer\n" in text


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("lr =", "layres = 4\nlr =", "job.toml:8:1: E871 tiny.layres is not a known key"),
        ("layers = 4", 'layers = "many"', "job.toml:2:1: E203 model.num_layers must be an int"),
        ("tp = 2", "tp = 2.5", "job.toml:6:1: E203 parallelism.tensor must be an integer"),
        ("lr = 0.1", 'norm = "batch"', "job.toml:8:1: E872 tiny.norm batch is not modelled"),
        ("layers = 4\n", "", "E873 tiny.layers is missing\n  fix: add tiny.layers, or --set model"),
        ("layers = 4", "layers: 4", "job.toml: E875 invalid TOML"),
        (JOB, "model:\n  num_layers: 4\n", "job.toml:1:1: E116 this is a scenario, not a tiny job"),
        (JOB, "\0\1", "job.toml: E116 this is a binary file, not a tiny job"),
    ],
)
def test_each_mistake_has_an_error_with_its_place(old: str, new: str, error: str) -> None:
    with pytest.raises(InputError) as raised:
        import_with(Tiny(), written("job.toml", JOB.replace(old, new)))
    assert error in str(raised.value)


def test_all_missing_fields_are_one_error() -> None:
    with pytest.raises(InputError) as raised:
        import_with(Tiny(), written("job.toml", "[tiny]\n"))
    names = [problem.message.split()[0] for problem in raised.value.problems]
    assert names == [f"tiny.{key}" for key in ("layers", "width", "heads", "length", "batch")]


def test_a_field_that_no_word_sets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Tiny().draft(ImportRequest(written("job.toml", JOB.replace("batch = 8\n", ""))))
    monkeypatch.setattr(draft, "table", WordTable("key", "a tiny job", {}))
    with pytest.raises(InputError, match=r"E873 batch.global is missing: no key of a tiny job"):
        draft.finished()


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"gpus": 0}, "gpus is 0"), ({"env": ["A=1"]}, "env is"), ({"model": 3}, "not a path")],
)
def test_a_request_refuses_values_of_wrong_types(fields: dict[str, object], error: str) -> None:
    with pytest.raises(InputError, match=f"E114.*{error}"):
        ImportRequest("job.toml", **fields)  # type: ignore[arg-type]
