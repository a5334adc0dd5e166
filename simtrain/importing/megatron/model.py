"""Import Megatron-LM's arguments of the model."""

from __future__ import annotations

import re

from simtrain.errors import InputError
from simtrain.importing.draft import padded_vocabulary
from simtrain.importing.layer_patterns import full_attention_every
from simtrain.importing.megatron.draft import MegatronDraft, listed, wrong
from simtrain.importing.megatron.experts import set_mlp
from simtrain.importing.megatron.hybrid import set_pattern
from simtrain.importing.settings import Setting

# Megatron-LM's defaults (arguments.py).
_LATENT_SIZES = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
_TOKENS = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
    "MistralTokenizer": 32768,
}
"""Tokens of the tokenizers with a vocabulary of their own.

Sources: OpenAI's encoder.json; Touvron et al. 2023, Section 2.2; meta-llama/llama3, tokenizer.py
(128,000 and 256 special tokens); Megatron-LM's tokenizer.py, which sets Mistral's.
"""

_HUB_TOKENS = {
    "meta-llama/Llama-2-": 32000,
    "meta-llama/Llama-3": 128256,
    "meta-llama/Meta-Llama-3": 128256,
    "mistralai/Mixtral-8x7B-": 32000,
    "Qwen/Qwen2.5-": 151665,
    "Qwen/Qwen3-": 151669,
    "deepseek-ai/DeepSeek-V3": 128815,
}
"""Tokens, with the added ones, of tokenizers on Hugging Face, by the start of their names.

Source: their tokenizer.json.
"""


def set_model(draft: MegatronDraft) -> None:
    """Set the model's sizes and its layers."""
    hidden, heads = draft.integer("hidden_size"), draft.integer("num_attention_heads")
    if draft.layers is not None:
        otherwise = "the letters of the pattern" if draft.pattern else ""
        name = draft.first_given("num_layers")
        draft.set("model.num_layers", draft.layers, name, otherwise=otherwise)
    if hidden is not None:
        draft.set("model.hidden_size", hidden, "hidden_size")
    if heads is not None:
        draft.set("model.num_attention_heads", heads, "num_attention_heads")
        shared = draft.integer("num_key_value_heads")
        groups = draft.integer("num_query_groups") or shared or 1
        names = "group_query_attention", "num_query_groups", "num_key_value_heads"
        if draft.flag("group_query_attention") or shared:
            draft.set("model.num_query_groups", groups, *names)
    if draft.pattern is not None:
        set_pattern(draft, draft.pattern)
    _set_window(draft)
    draft.copy("mtp_num_layers")
    is_latent = draft.flag("multi_latent_attention")
    if is_latent:
        _set_latent_attention(draft)
    else:
        draft.copy("kv_channels")
    swiglu = draft.flag("swiglu")
    if ffn := draft.integer("ffn_hidden_size"):
        set_mlp(draft, ffn, draft.origin("ffn_hidden_size"))
    elif hidden is not None and swiglu:
        # As in arguments.py: about as many parameters as a plain MLP, in multiples of 64.
        ffn = int((4 * hidden * 2 / 3) / 64) * 64
        set_mlp(draft, ffn, "default with --swiglu: 8/3 h, rounded down to 64")
    elif hidden is not None:
        set_mlp(draft, 4 * hidden, "default: 4 h")
    if seq_length := draft.integer("seq_length") or draft.integer("encoder_seq_length"):
        draft.set("model.seq_length", seq_length, draft.first_given("seq_length"))
        _check_positions(draft, seq_length)
    name = "untie_embeddings_and_output_weights"
    draft.set("model.tied_embeddings", not draft.flag(name), name)
    activations = {"swiglu": "swiglu", "quick_geglu": "geglu", "squared_relu": "squared_relu"}
    activation = next((ours for name, ours in activations.items() if draft.flag(name)), "gelu")
    draft.set("model.activation", activation, *activations)
    draft.fill("normalization", "qk_layernorm")
    rotations = "use_rotary_position_embeddings", "enable_gpt_oss"
    default = "rope" if any(map(draft.flag, rotations)) else "learned_absolute"
    name = "position_embedding_type"
    draft.set("model.position_embedding", draft.choice(name, default), name, *rotations)
    biases = draft.flag("add_bias_linear")
    if biases and "experts" in draft.data["model"]:
        draft.note("no --disable-bias-linear", "biases of a model with experts: some kernels more")
        comment = "biases of a model with experts are not modelled"
        draft.set_because("model.biases", False, comment)
    else:
        draft.set("model.biases", biases, "add_bias_linear")
    qkv_biases = not is_latent and (biases or draft.flag("add_qkv_bias"))
    draft.set("model.qkv_biases", qkv_biases, "add_bias_linear", "add_qkv_bias")
    draft.fill("hidden_dropout", "attention_dropout")


def _check_positions(draft: MegatronDraft, seq_length: int) -> None:
    """Check that there are as many positions as tokens (validate_args of arguments.py)."""
    name = "max_position_embeddings"
    argument, positions = draft.given(name), draft.integer(name)
    length = draft.given(draft.first_given("seq_length"))
    if argument and length and positions is not None and positions < seq_length:
        raise InputError.of(
            "E872",
            f"{argument.words} is less than {length.words}",
            argument.place,
            f"write {argument.spelled} {seq_length} or more, or {length.spelled} {positions} or "
            "less",
            "Megatron-LM refuses sequences with more tokens than positions, with any embedding",
        )


def _set_latent_attention(draft: MegatronDraft) -> None:
    if draft.is_local:
        says = "cannot be combined with --multi-latent-attention: its attention has equal heads"
        raise wrong(draft.settings["transformer_impl"], says)
    for name, default in _LATENT_SIZES.items():
        size = draft.integer(name) or default
        if size is not None:
            setting = name if draft.given(name) else "multi_latent_attention"
            draft.set(f"model.latent_attention.{name}", size, setting)


def _hub_tokens(draft: MegatronDraft) -> int | None:
    """Return the tokens of a tokenizer on Hugging Face; None for others."""
    model = draft.given("tokenizer_model")
    name = "" if model is None or model.unknown else model.value
    return next((tokens for start, tokens in _HUB_TOKENS.items() if name.startswith(start)), None)


def _set_window(draft: MegatronDraft) -> None:
    """Set the attention window: the tokens before a query, plus the query; -1 means no window."""
    argument = draft.known("window_size")
    if argument is None:
        return
    sizes = re.fullmatch(r"\(?\s*(-1|\d+)\s*,\s*(-1|\d+)\s*\)?", argument.value)
    if sizes is None or sizes[2] not in ("0", "-1"):
        says = "must be of the form 127,0: the tokens before a query, and 0 after it"
        raise wrong(argument, says)
    if sizes[1] == "-1":
        return
    every = draft.known("window_attn_skip_freq")
    step = _full_attention_every(draft, every) if every else None
    if step == 1:
        return
    draft.set("model.attention_window", int(sizes[1]) + 1, "window_size")
    if step:
        draft.set("model.full_attention_every", step, "window_attn_skip_freq")


def _full_attention_every(draft: MegatronDraft, argument: Setting) -> int | None:
    """Return n if every nth layer has no window; None if all layers have one."""
    layers = draft.layers or 0
    if argument.value.isdecimal() and int(argument.value) > 0:
        number = int(argument.value)
        return number if number <= layers else None
    pattern = listed(argument)
    if len(pattern) != layers or not {*pattern} <= {"0", "1"}:
        raise wrong(argument, f"must be a number, or 0 or 1 for each of the {layers} layers")
    if len({*pattern}) < 2:
        return 1 if "0" in pattern else None
    if step := full_attention_every([layer == "1" for layer in pattern]):
        return step
    raise wrong(argument, "must skip every nth layer; other patterns are not modelled")


def set_vocabulary(draft: MegatronDraft) -> None:
    """Set the vocabulary, padded to a multiple of 128 x tensor as in Megatron-LM."""
    if vocab := draft.override("model.vocab_size"):
        draft.set_because("model.vocab_size", vocab, "--set")
        return
    for name in ("padded_vocab_size", "pad_vocab_size_to"):
        if padded := draft.integer(name):
            draft.set("model.vocab_size", padded, name)
            return
    tokenizer = draft.known("tokenizer_type")
    # GPT-2's tokenizer is the default of pretrain_gpt.py.
    kind = tokenizer.value if tokenizer else "GPT2BPETokenizer"
    tokens = draft.integer("vocab_size") or _TOKENS.get(kind) or _hub_tokens(draft)
    if tokens is None:
        raise InputError.of(
            "E873",
            f"the size of the vocabulary of {kind} is missing",
            draft.place("tokenizer_type"),
            "add --set model.vocab_size=32000, or another number of tokens; or --vocab-size or "
            "--padded-vocab-size in the arguments",
            "files of the tokenizer, which are not read, determine it",
        )
    if kind == "NullTokenizer":
        tokens += 1  # The end-of-document token (_NullTokenizer in tokenizer.py).
    unit = (draft.integer("make_vocab_size_divisible_by") or 128) * draft.tensor
    names = "vocab_size", "tokenizer_type", "make_vocab_size_divisible_by"
    padded, detail = padded_vocabulary(tokens, unit)
    otherwise = "default: GPT2BPETokenizer"
    draft.set("model.vocab_size", padded, *names, otherwise=otherwise, detail=detail)
