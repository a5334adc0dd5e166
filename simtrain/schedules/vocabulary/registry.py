"""All splits of the vocabulary. A new one is a class in a file of its own and a line here."""

from __future__ import annotations

from simtrain.schedules.vocabulary.interlaced import Interlaced
from simtrain.schedules.vocabulary.split import VocabularySplit
from simtrain.schedules.vocabulary.vocab_1 import Vocab1
from simtrain.schedules.vocabulary.vocab_2 import Vocab2

SPLITS: dict[str, VocabularySplit] = {
    split.name: split for split in (Vocab1(), Vocab2(), Interlaced())
}
"""The splits by name."""
