"""The vocabulary follows from the name of the tokenizer in a script; no number is invented."""

import pytest

from simtrain.errors import InputError
from simtrain.importing.tokenizers import TOKENIZERS, tokenizer_of
from tests.helpers.imported import BASE, import_megatron

HUGGING_FACE = f"{BASE} --tokenizer-type HuggingFaceTokenizer --tokenizer-model"
_TOKENS = {
    32000: "meta-llama/Llama-2-7b-hf mistralai/Mistral-7B-v0.1 "
    "mistralai/Mixtral-8x7B-v0.1 TinyLlama/TinyLlama-1.1B",
    128256: "meta-llama/Meta-Llama-3-8B /models/llama3.1/tokenizer.model "
    "meta-llama/Llama-3.2-1B nvidia/Llama-3_1-Nemotron-51B-Instruct",
    202048: "meta-llama/Llama-4-Scout-17B-16E",
    32768: "mistralai/Mistral-7B-Instruct-v0.3 "
    "mistralai/Mixtral-8x22B-Instruct-v0.1 mistralai/Mixtral-8x7B-v0.3",
    131072: "mistralai/Mistral-Nemo-Base-2407 "
    "nvidia/Nemotron-H-8B-Base-8K nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    151646: "Qwen/Qwen2-7B Qwen/Qwen1.5-7B",
    151665: "Qwen/Qwen2.5-72B",
    151669: "Qwen/Qwen3-30B-A3B",
    100002: "deepseek-ai/DeepSeek-V2-Lite",
    100015: "deepseek-ai/deepseek-moe-16b-base",
    128815: "deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-R1",
    256000: "google/gemma-7b google/gemma-2-9b "
    "nvidia/nemotron-3-8b-base-4k nvidia/Minitron-8B-Base",
    262145: "google/gemma-3-4b-pt",
    50257: "openai-community/gpt2",
    50277: "EleutherAI/gpt-neox-20b EleutherAI/pythia-1.4b",
    65024: "tiiuae/falcon-40b",
    50295: "microsoft/phi-2 microsoft/phi-1_5",
    32011: "microsoft/Phi-3-mini-4k-instruct microsoft/Phi-3.5-mini-instruct",
    100352: "microsoft/phi-4",
    200019: "o200k_base",
    201088: "openai/gpt-oss-20b",
    100277: "cl100k_base.tiktoken",
    100278: "allenai/OLMo-2-1124-7B",
    50280: "allenai/OLMo-7B",
    250680: "bigscience/bloom",
    49152: "bigcode/starcoder2-7b",
    32016: "codellama/CodeLlama-7b-hf",
    64000: "01-ai/Yi-34B",
}
NAMES = {name: tokens for tokens, names in _TOKENS.items() for name in names.split()}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_the_tokens_and_megatron_pads_them(name: str) -> None:
    tokenizer = tokenizer_of(name)
    assert tokenizer and tokenizer.tokens == NAMES[name]
    options = "--tensor-model-parallel-size 4 --make-vocab-size-divisible-by 64"
    vocabulary = import_megatron(f"{HUGGING_FACE} {name} {options}")[0].model.vocab_size
    assert vocabulary == -(-NAMES[name] // 256) * 256


def test_every_tokenizer_of_the_table_is_reached() -> None:
    assert {*map(tokenizer_of, NAMES)} == {*TOKENIZERS}
    assert all(tokenizer.source for tokenizer in TOKENIZERS)


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
