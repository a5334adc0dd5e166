"""The published model of each class and version that NeMo 2 names."""

from __future__ import annotations

_CLASSES = """
    Llama2Config7B meta-llama/Llama-2-7b-hf
    Llama2Config13B meta-llama/Llama-2-13b-hf
    Llama2Config70B meta-llama/Llama-2-70b-hf
    Llama3Config8B meta-llama/Meta-Llama-3-8B
    Llama3Config70B meta-llama/Meta-Llama-3-70B
    Llama31Config8B meta-llama/Meta-Llama-3.1-8B
    Llama31Config70B meta-llama/Meta-Llama-3.1-70B
    Llama31Config405B meta-llama/Meta-Llama-3.1-405B
    Llama32Config1B meta-llama/Llama-3.2-1B
    Llama32Config3B meta-llama/Llama-3.2-3B
    Llama31NemotronNano8BConfig meta-llama/Meta-Llama-3.1-8B
    Llama31Nemotron70BConfig meta-llama/Meta-Llama-3.1-70B
    MistralConfig7B mistralai/Mistral-7B-v0.1
    MistralNeMoConfig12B mistralai/Mistral-Nemo-Base-2407
    MixtralConfig8x7B mistralai/Mixtral-8x7B-v0.1
    MixtralConfig8x22B mistralai/Mixtral-8x22B-v0.1
    Qwen2Config500M Qwen/Qwen2-0.5B
    Qwen2Config1P5B Qwen/Qwen2-1.5B
    Qwen2Config7B Qwen/Qwen2-7B
    Qwen2Config72B Qwen/Qwen2-72B
    Qwen25Config500M Qwen/Qwen2.5-0.5B
    Qwen25Config1P5B Qwen/Qwen2.5-1.5B
    Qwen25Config7B Qwen/Qwen2.5-7B
    Qwen25Config14B Qwen/Qwen2.5-14B
    Qwen25Config32B Qwen/Qwen2.5-32B
    Qwen25Config72B Qwen/Qwen2.5-72B
    Qwen3Config600M Qwen/Qwen3-0.6B
    Qwen3Config1P7B Qwen/Qwen3-1.7B
    Qwen3Config4B Qwen/Qwen3-4B
    Qwen3Config8B Qwen/Qwen3-8B
    Qwen3Config14B Qwen/Qwen3-14B
    Qwen3Config32B Qwen/Qwen3-32B
    Qwen3Config30B_A3B Qwen/Qwen3-30B-A3B
    Qwen3Config235B_A22B Qwen/Qwen3-235B-A22B
    DeepSeekV2Config deepseek-ai/DeepSeek-V2
    DeepSeekV2LiteConfig deepseek-ai/DeepSeek-V2-Lite
    DeepSeekV3Config deepseek-ai/DeepSeek-V3
    GemmaConfig2B google/gemma-2b
    GemmaConfig7B google/gemma-7b
    Gemma2Config2B google/gemma-2-2b
    Gemma2Config9B google/gemma-2-9b
    Gemma2Config27B google/gemma-2-27b
    Gemma3Config1B google/gemma-3-1b-pt
    Phi3ConfigMini microsoft/Phi-3-mini-4k-instruct
    Starcoder2Config3B bigcode/starcoder2-3b
    Starcoder2Config7B bigcode/starcoder2-7b
    Starcoder2Config15B bigcode/starcoder2-15b
"""
_VERSIONS = """
    llama3_8b meta-llama/Meta-Llama-3-8B
    llama3_70b meta-llama/Meta-Llama-3-70B
    llama31_8b meta-llama/Meta-Llama-3.1-8B
    llama31_70b meta-llama/Meta-Llama-3.1-70B
    llama31_405b meta-llama/Meta-Llama-3.1-405B
    mixtral_8x7b mistralai/Mixtral-8x7B-v0.1
    mixtral_8x22b mistralai/Mixtral-8x22B-v0.1
    qwen2_500m Qwen/Qwen2-0.5B
    qwen2_1p5b Qwen/Qwen2-1.5B
    qwen2_7b Qwen/Qwen2-7B
    qwen2_72b Qwen/Qwen2-72B
    qwen25_500m Qwen/Qwen2.5-0.5B
    qwen25_1p5b Qwen/Qwen2.5-1.5B
    qwen25_7b Qwen/Qwen2.5-7B
    qwen25_14b Qwen/Qwen2.5-14B
    qwen25_32b Qwen/Qwen2.5-32B
    qwen25_72b Qwen/Qwen2.5-72B
    qwen3_600m Qwen/Qwen3-0.6B
    qwen3_1p7b Qwen/Qwen3-1.7B
    qwen3_4b Qwen/Qwen3-4B
    qwen3_8b Qwen/Qwen3-8B
    qwen3_14b Qwen/Qwen3-14B
    qwen3_32b Qwen/Qwen3-32B
    qwen3_30b_a3b Qwen/Qwen3-30B-A3B
    qwen3_235b_a22b Qwen/Qwen3-235B-A22B
    gemma2_2b google/gemma-2-2b
    gemma2_9b google/gemma-2-9b
    gemma2_27b google/gemma-2-27b
    starcoder2_3b bigcode/starcoder2-3b
    starcoder2_7b bigcode/starcoder2-7b
    starcoder2_15b bigcode/starcoder2-15b
"""


def _pairs(text: str) -> dict[str, str]:
    return dict(line.split() for line in text.strip().splitlines())


MODELS = _pairs(_CLASSES) | _pairs(_VERSIONS)
"""The name on Hugging Face of each class of nemo/collections/llm/gpt/model, and of each version
that the functions of nemo/collections/llm/recipes take."""

_SIZES = """
    GPTConfig126M 12 768 3072 12
    GPTConfig5B 24 4096 16384 32
    GPTConfig7B 32 4096 10880 32
    GPTConfig20B 44 6144 24576 48
    GPTConfig40B 48 8192 32768 64
    GPTConfig175B 96 12288 49152 96
    nemotron3_4b 32 3072 9216 24 8
    nemotron3_8b 32 4096 16384 32
    nemotron3_22b 40 6144 24576 48
    nemotron4_15b 32 6144 24576 48 8
    nemotron4_340b 96 18432 73728 96 8
    Nemotron3Config4B 32 3072 9216 24 8
    Nemotron3Config8B 32 4096 16384 32
    Nemotron3Config22B 40 6144 24576 48
    Nemotron4Config15B 32 6144 24576 48 8
    Nemotron4Config340B 96 18432 73728 96 8
"""
_NEMOTRON = {
    "squared_relu": True,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "padded_vocab_size": 256000,
}
_GPT = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "seq_length": 2048, "vocab_size": 50257}


def _arguments(line: str) -> tuple[str, dict[str, object]]:
    name, layers, hidden, ffn, heads, *groups = line.split()
    sizes: dict[str, object] = {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
    }
    if groups:
        sizes |= {"group_query_attention": True, "num_query_groups": groups[0]}
    return name, sizes | (_NEMOTRON if "emotron" in name else _GPT)


ARGUMENTS = dict(map(_arguments, _SIZES.strip().splitlines()))
"""The arguments of models whose config.json is not published: GPT and Nemotron of NeMo."""
