# ruff: noqa: E501 (a table is easier to compare on one line)
"""Tokens of well-known tokenizers, by the name of the model in a script."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VARIABLE = re.compile(r"\$\{?\w+\}?|\$\([^)]*\)?")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer.

    Args:
        name: its model.
        pattern: pattern of the model's name, in lower case with "-" for "_", as paths have it.
        tokens: its tokens with the added ones, which HuggingFaceTokenizer counts.
        source: where the number is from.
    """

    name: str
    pattern: str
    tokens: int
    source: str


_FILE = "tokenizer.json and added tokens of "
TOKENIZERS = (
    Tokenizer("Llama 4", r"llama-?4", 202048, "meta-llama/llama-models, llama4/tokenizer.py"),
    Tokenizer("Llama 3", r"llama-?3(?!\d)", 128256, "meta-llama/llama3, tokenizer.py: 128,000 + 256"),
    Tokenizer("Llama 2", r"llama-?2(?!\d)", 32000, "Touvron et al. 2023, Section 2.2"),
    Tokenizer("TinyLlama", r"tinyllama", 32000, "Llama 2's"),
    Tokenizer("Code Llama", r"code-?llama", 32016, "config.json of codellama/CodeLlama-7b-hf"),
    Tokenizer("Mixtral", r"mixtral-8x\d+b-(?:instruct-)?v0\.3", 32768, f"{_FILE}version 3"),
    Tokenizer("Mixtral", r"mixtral-8x22b-instruct", 32768, f"{_FILE}Mixtral-8x22B-Instruct-v0.1"),
    Tokenizer("Mixtral", r"mixtral-8x", 32000, "Jiang et al. 2024, Table 1"),
    Tokenizer("Mistral Nemo", r"mistral-nemo", 131072, f"{_FILE}mistralai/Mistral-Nemo-Base-2407"),
    Tokenizer("Mistral 7B v0.3", r"mistral-7b-(?:instruct-)?v0\.3", 32768, f"{_FILE}version 3"),
    Tokenizer("Mistral 7B", r"mistral-7b-(?:instruct-)?v0\.[12]", 32000, "Jiang et al. 2023, Table 1"),
    Tokenizer("Qwen3", r"qwen-?3(?![.\d])", 151669, f"{_FILE}Qwen/Qwen3-8B"),
    Tokenizer("Qwen2.5", r"qwen-?2[.p]5", 151665, f"{_FILE}Qwen/Qwen2.5-7B"),
    Tokenizer("Qwen2", r"qwen-?(?:2|1[.p]5)(?![.\d])", 151646, f"{_FILE}Qwen/Qwen2-7B"),
    Tokenizer("DeepSeek V3", r"deepseek-?(?:v3|r1(?!-distill))", 128815, f"{_FILE}DeepSeek-V3"),
    Tokenizer("DeepSeek V2", r"deepseek-?v2", 100002, f"{_FILE}deepseek-ai/DeepSeek-V2-Lite"),
    Tokenizer("DeepSeek LLM", r"deepseek-?(?:llm|moe)", 100015, f"{_FILE}deepseek-ai/deepseek-moe-16b"),
    Tokenizer("Gemma 3", r"gemma-?3", 262145, f"{_FILE}google/gemma-3-4b-pt"),
    Tokenizer("Gemma", r"gemma-?[127]", 256000, "Gemma Team 2024, Table 1"),
    Tokenizer("GPT-NeoX", r"(?:gpt-?neox|pythia|neox-20b)", 50277, f"{_FILE}EleutherAI/gpt-neox-20b"),
    Tokenizer("GPT-2", r"gpt-?2(?![\da-z])", 50257, "OpenAI's encoder.json"),
    Tokenizer("Falcon", r"falcon-(?:7b|11b|40b|180b|rw)", 65024, "config.json of tiiuae/falcon-40b"),
    Tokenizer("Phi-4", r"phi-?4(?!-)", 100352, "config.json of microsoft/phi-4"),
    Tokenizer("Phi-3", r"phi-?3(?:\.5)?-(?:mini|medium)", 32011, f"{_FILE}microsoft/Phi-3-mini-4k-instruct"),
    Tokenizer("Phi-2", r"phi-?(?:1|1[-.]5|2)(?![.\d])", 50295, f"{_FILE}microsoft/phi-2"),
    Tokenizer("Nemotron-3 8B", r"nemotron-?3-(?:8b|22b)", 256000, "config of nvidia/nemotron-3-8b-base-4k"),
    Tokenizer("Nemotron-H", r"nemotron-?(?:h|nano|super|ultra|3)(?![a-z\d])", 131072, "config.json of nvidia/Nemotron-H-8B-Base-8K"),
    Tokenizer("Nemotron-4", r"(?:nemotron-?(?:4|mini)|minitron)", 256000, "Nemotron-4 15B, Section 2"),
    Tokenizer("o200k", r"o200k-?base", 200019, "openai/tiktoken, openai_public.py"),
    Tokenizer("o200k harmony", r"(?:gpt-?oss|o200k-?harmony)", 201088, "openai/tiktoken, openai_public.py"),
    Tokenizer("cl100k", r"cl100k", 100277, "openai/tiktoken, openai_public.py"),
    Tokenizer("OLMo 2", r"(?:olmo-?2|dolma2)", 100278, f"{_FILE}allenai/OLMo-2-1124-7B"),
    Tokenizer("OLMo", r"olmo-?(?:1b|7b)", 50280, f"{_FILE}allenai/OLMo-7B"),
    Tokenizer("BLOOM", r"bloom", 250680, "BigScience 2022, Section 3.2.3"),
    Tokenizer("StarCoder", r"starcoder", 49152, "Li et al. 2023, Section 5.2"),
    Tokenizer("Yi", r"yi-(?:1\.5-)?(?:6|9|34)b", 64000, "01.AI 2024, Section 2"),
)  # fmt: skip
"""The first whose pattern is in a name counts."""

TOKENS_OF_TYPES = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
    "MistralTokenizer": 32768,
    "TikTokenizer": 131072,
}
"""Tokens of Megatron-LM's types of tokenizers with a vocabulary of their own.

Sources: OpenAI's encoder.json; Touvron et al. 2023, Section 2.2; meta-llama/llama3, tokenizer.py
(128,000 and 256 special tokens); Megatron-LM's tokenizer.py, which sets Mistral's, and 2**17 for
TikTokenizer without --vocab-size.
"""


def tokenizer_of(path: str) -> Tokenizer | None:
    """Return the tokenizer that a name or a path names; None for others.

    Names of variables in the path, such as $LLAMA3_FOLDER, count for nothing.
    """
    text = _VARIABLE.sub("", path).lower().replace("_", "-")
    return next(
        (each for each in TOKENIZERS if re.search(rf"(?<![a-z\d]){each.pattern}", text)), None
    )
