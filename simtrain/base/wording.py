"""Names that other rooms still import from here."""

from simtrain.base.plain_data import (
    Number,
    Sentence,
    joined_sentences,
    sentence_json,
    with_whole_numbers,
)

__all__ = ["Number", "Sentence", "joined_sentences", "sentence_json", "with_whole_numbers"]
