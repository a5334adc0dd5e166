"""Files of other tools' words: every row names a field of scenarios."""

import pytest

from simtrain.base.strict_yaml.validation import names_of
from simtrain.guests.importing.bridge.reader import TABLE as BRIDGE
from simtrain.guests.importing.deepspeed.reader import TABLE as DEEPSPEED
from simtrain.guests.importing.hugging_face.keys import FAMILIES, table_of
from simtrain.guests.importing.megatron.arguments import TABLE as MEGATRON
from simtrain.guests.importing.table import WordTable
from simtrain.guests.importing.torchtitan.reader import TABLE as TORCHTITAN
from simtrain.scenario import Scenario

TABLES = [*(MEGATRON, TORCHTITAN, DEEPSPEED, BRIDGE), *map(table_of, FAMILIES.values())]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.source)
def test_every_row_names_a_field_of_scenarios(table: WordTable) -> None:
    for word in table.mapped.values():
        assert word.field in names_of(Scenario, word.field.rpartition(".")[2]), word.field


@pytest.mark.parametrize(
    "table", [each for each in TABLES if each is not BRIDGE], ids=lambda table: table.source
)
def test_every_word_has_one_row_and_its_default_is_a_value(table: WordTable) -> None:
    parts = (table.mapped, table.not_modelled, table.without_effect, table.details)
    assert sum(map(len, parts)) == len(table.words)
    for word in table.mapped.values():
        assert not word.values or not word.default or word.default in word.values
