"""Files of other tools' words: every row names a field of scenarios."""

from pathlib import Path

import pytest

from simtrain.base.strict_yaml.validation import names_of
from simtrain.guests.importing.bridge.reader import TABLE as BRIDGE
from simtrain.guests.importing.deepspeed.reader import TABLE as DEEPSPEED
from simtrain.guests.importing.hugging_face.keys import FAMILIES, table_of
from simtrain.guests.importing.megatron.arguments import TABLE as MEGATRON
from simtrain.guests.importing.table import WordsFile, WordTable
from simtrain.guests.importing.torchtitan.reader import TABLE as TORCHTITAN
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


@pytest.mark.parametrize(
    "table", [each for each in TABLES if each is not BRIDGE], ids=lambda table: table.source
)
def test_every_word_has_one_row_and_its_default_is_a_value(table: WordTable) -> None:
    parts = (table.mapped, table.not_modelled, table.without_effect, table.details)
    assert sum(map(len, parts)) == len(table.words)
    for word in table.mapped.values():
        assert not word.values or not word.default or word.default in word.values
