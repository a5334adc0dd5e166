"""The vocabulary follows from the name of the tokenizer in a script; no number is invented."""

from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.guests.importing.tokenizers import TOKENIZERS, tokenizer_of
from tests.helpers.imported import BASE, import_megatron

HUGGING_FACE = f"{BASE} --tokenizer-type HuggingFaceTokenizer --tokenizer-model"


@pytest.mark.parametrize("row", TOKENIZERS, ids=lambda row: row["examples"][0])
def test_names_say_the_tokens_and_megatron_pads_them(row: dict[str, Any]) -> None:
    assert row["source"]
    for name in row["examples"]:
        assert tokenizer_of(name) == (row["name"], row["tokens"])
        options = "--tensor-model-parallel-size 4 --make-vocab-size-divisible-by 64"
        vocabulary = import_megatron(f"{HUGGING_FACE} {name} {options}")[0].model.vocab_size
        assert vocabulary == -(-row["tokens"] // 256) * 256


@pytest.mark.parametrize(
    "name",
    [
        *("/tokenizers/ours.model", "$LLAMA3/ours", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        *("Qwen/Qwen3.5-9B", "llama-30b", "llama-33b", "huggyllama/llama-7b", "x/gpt2medium"),
        *("org/alpaca", "$(find_tokenizer llama-3)", "xllama-3"),
    ],
)
def test_no_number_is_suggested_where_none_is_known(name: str) -> None:
    assert tokenizer_of(name) is None
    with pytest.raises(InputError, match="E873 the size of the vocabulary of Hugging") as caught:
        import_megatron(f"{HUGGING_FACE} '{name}'")
    text = str(caught.value)
    assert "--set model.vocab_size=..., with the vocab_size in the config.json" in text
    assert not any(digit in text.partition("fix:")[2] for digit in "0123456789")


def test_types_with_a_vocabulary_of_their_own_ignore_the_name_of_the_file() -> None:
    words = "--tokenizer-type TikTokenizer --tokenizer-model llama-3.json"
    assert import_megatron(f"{BASE} {words}")[0].model.vocab_size == 131072
    words = "--tokenizer-type NullTokenizer --vocab-size 131071"
    assert import_megatron(f"{BASE} {words}")[0].model.vocab_size == 131072
    words = "--tokenizer-type Llama2Tokenizer --tokenizer-model Mistral-7B-v0.3/tokenizer.model"
    assert import_megatron(f"{BASE} {words}")[0].model.vocab_size == 32768
