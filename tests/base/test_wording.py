"""Text with exact numbers: functions of text work on it, and joining keeps the numbers."""

import copy
import pickle

from simtrain.base.plain_data import (
    Number,
    Sentence,
    joined_sentences,
    name,
    sentence_json,
    with_whole_numbers,
)


def test_a_sentence_is_text_and_states_where_its_numbers_are() -> None:
    half = Sentence(Number(0.512, "51%"), " of ", name("16B1"))
    whole = joined_sentences(", ", ["first", half, Sentence("then ", Number(2e-6, "2 µs"))])
    assert whole == "first, 51% of 16B1, then 2 µs"
    found = sentence_json(whole)
    assert found["text"] == whole and type(found["text"]) is str
    texts = {whole[one["start"] :][: len(one["text"])]: one["value"] for one in found["numbers"]}
    assert texts == {"51%": 0.512, "16B1": "16B1", "2 µs": 2e-6}
    assert sentence_json("no numbers") == {"text": "no numbers", "numbers": []}
    for copied in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        assert copied == whole and copied.numbers == whole.numbers


def test_whole_numbers_of_a_text_are_exact() -> None:
    found = with_whole_numbers("full, units of 3 layers, keeping 7 of 31; 0.5 and 1f1b stay")
    assert [number.value for _, number in found.numbers] == [3, 7, 31]
