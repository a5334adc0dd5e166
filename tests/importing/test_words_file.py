"""Files of other tools' words: every row is read strictly, and names a field of scenarios."""

from pathlib import Path

import pytest

from simtrain.base.strict_yaml.validation import names_of
from simtrain.errors import InputError
from simtrain.importing.bridge.reader import TABLE as BRIDGE
from simtrain.importing.deepspeed.reader import TABLE as DEEPSPEED
from simtrain.importing.hugging_face.keys import FAMILIES, table_of
from simtrain.importing.megatron.arguments import TABLE as MEGATRON
from simtrain.importing.table import WordsFile, WordTable
from simtrain.importing.torchtitan.reader import TABLE as TORCHTITAN
from simtrain.scenario import Scenario

TABLES = [
    *(MEGATRON, TORCHTITAN, DEEPSPEED, BRIDGE),
    *map(table_of, FAMILIES.values()),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.source)
def test_every_row_names_a_field_of_scenarios(table: WordTable) -> None:
    for word in table.mapped.values():
        assert word.field in names_of(Scenario, word.field.rpartition(".")[2]), word.field


def words_of(text: str) -> WordTable:
    file = Path("words.toml")
    file.write_text(text, "utf-8")
    return WordsFile(file).table()


def test_a_row_has_its_main_entry_alone_or_several() -> None:
    table = words_of(
        'source = "a job"\nwithout_effect = "seed lr"\n'
        '[fields]\nlayers = "model.num_layers"\n'
        'norm = {field = "model.normalization", default = "rms", values = {rms = "rms_norm"}}\n'
        'dtype = {field = "precision.compute", values = ["bf16", "fp16"]}\n'
        '[not_modelled]\nsharp = {text = "faster", details = "group"}\n'
    )
    assert table.mapped["norm"].our_default == "rms_norm"
    assert table.mapped["dtype"].values == {"bf16": "bf16", "fp16": "fp16"}
    assert table.words == {"seed", "lr", "layers", "norm", "dtype", "sharp", "group"}
    assert table.refined_by("group") == "sharp"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[fields", "invalid TOML"),
        ('[fields]\na = {feild = "x"}', "a has an unknown entry feild"),
        ("[fields]\na = {default = 1}", "a has no field"),
        ("[not_modelled]\na = 3", "a has no text"),
        ('[fields]\na = {field = "x", default = "c", values = ["b"]}', "the default of a is none"),
        ('without_effect = "a"\n[fields]\na = "x"', "a has several rows"),
    ],
)
def test_a_wrong_row_is_refused(text: str, error: str) -> None:
    with pytest.raises(InputError, match=f"words.toml: E742 .*{error}"):
        words_of(text)
