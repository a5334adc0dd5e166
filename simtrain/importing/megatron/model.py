"""Import Megatron-LM's arguments of the model."""

from __future__ import annotations

import re

from simtrain.errors import InputError, Problem
from simtrain.importing.draft import padded_vocabulary
from simtrain.importing.layer_patterns import full_attention_every
from simtrain.importing.megatron.draft import MegatronDraft, listed, wrong
from simtrain.importing.megatron.experts import set_mlp
from simtrain.importing.megatron.hybrid import set_pattern
from simtrain.importing.settings import Setting
from simtrain.importing.tokenizers import TOKENS_OF_TYPES, tokenizer_of

# Megatron-LM's defaults (arguments.py).
_LATENT_SIZES = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
_ACTIVATIONS = {"swiglu": "swiglu", "quick_geglu": "geglu", "squared_relu": "squared_relu"}
"""The flag of each activation; without a flag it is gelu."""
_TOKENIZER_FILES = "tokenizer_model", "tokenizer_name_or_path"
_WITHOUT_FILE = "GPT2BPETokenizer", "MistralTokenizer", "NullTokenizer", "TikTokenizer"
"""Types of tokenizers whose vocabulary does not depend on the model that a file is named after."""


def set_model(draft: MegatronDraft) -> None:
    """Set the model's sizes and its layers."""
    # The file has the fields in this order.
    _set_sizes(draft)
    if draft.pattern is not None:
        set_pattern(draft, draft.pattern)
    _set_window(draft)
    draft.copy("mtp_num_layers")
    if draft.flag("multi_latent_attention"):
        _set_latent_attention(draft)
    else:
        draft.copy("kv_channels")
    _set_mlp_size(draft)
    if seq_length := draft.integer("seq_length") or draft.integer("encoder_seq_length"):
        draft.set("model.seq_length", seq_length, draft.first_given("seq_length"))
        _check_positions(draft, seq_length)
    name = "untie_embeddings_and_output_weights"
    draft.set("model.tied_embeddings", not draft.flag(name), name)
    activation = next((ours for name, ours in _ACTIVATIONS.items() if draft.flag(name)), "gelu")
    draft.set("model.activation", activation, *_ACTIVATIONS)
    draft.fill("normalization", "qk_layernorm")
    rotations = "use_rotary_position_embeddings", "enable_gpt_oss"
    default = "rope" if any(map(draft.flag, rotations)) else "learned_absolute"
    name = "position_embedding_type"
    draft.set("model.position_embedding", draft.choice(name, default), name, *rotations)
    _set_biases(draft)
    draft.fill("hidden_dropout", "attention_dropout")


def _set_sizes(draft: MegatronDraft) -> None:
    """Set the numbers of layers, channels, heads and query groups."""
    if draft.layers is not None:
        otherwise = "the letters of the pattern" if draft.pattern else ""
        name = draft.first_given("num_layers")
        draft.set("model.num_layers", draft.layers, name, otherwise=otherwise)
    if (hidden := draft.integer("hidden_size")) is not None:
        draft.set("model.hidden_size", hidden, "hidden_size")
    if (heads := draft.integer("num_attention_heads")) is not None:
        draft.set("model.num_attention_heads", heads, "num_attention_heads")
        shared = draft.integer("num_key_value_heads")
        groups = draft.integer("num_query_groups") or shared or 1
        names = "group_query_attention", "num_query_groups", "num_key_value_heads"
        if draft.flag("group_query_attention") or shared:
            draft.set("model.num_query_groups", groups, *names)


def _set_mlp_size(draft: MegatronDraft) -> None:
    """Set the size of the MLP, or Megatron-LM's default."""
    hidden, swiglu = draft.integer("hidden_size"), draft.flag("swiglu")
    if ffn := draft.integer("ffn_hidden_size"):
        set_mlp(draft, ffn, draft.origin("ffn_hidden_size"))
    elif hidden is not None and swiglu:
        # As in arguments.py: about as many parameters as a plain MLP, in multiples of 64.
        ffn = int((4 * hidden * 2 / 3) / 64) * 64
        set_mlp(draft, ffn, "default with --swiglu: 8/3 h, rounded down to 64")
    elif hidden is not None:
        set_mlp(draft, 4 * hidden, "default: 4 h")


def _set_biases(draft: MegatronDraft) -> None:
    """Set the biases of linear layers; those of models with experts are only noted."""
    biases = draft.flag("add_bias_linear")
    if biases and "experts" in draft.data["model"]:
        draft.note("no --disable-bias-linear", "biases of a model with experts: some kernels more")
        comment = "biases of a model with experts are not modelled"
        draft.set_because("model.biases", False, comment)
    else:
        draft.set("model.biases", biases, "add_bias_linear")
    is_latent = draft.flag("multi_latent_attention")
    qkv_biases = not is_latent and (biases or draft.flag("add_qkv_bias"))
    draft.set("model.qkv_biases", qkv_biases, "add_bias_linear", "add_qkv_bias")


def _check_positions(draft: MegatronDraft, seq_length: int) -> None:
    """Check that there are as many positions as tokens (validate_args of arguments.py)."""
    name = "max_position_embeddings"
    argument = draft.given(name)
    positions = None if argument and argument.unknown else draft.integer(name)
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
    kind = draft.known("tokenizer_type")
    # GPT-2's tokenizer is the default of pretrain_gpt.py.
    name = kind.value if kind else "GPT2BPETokenizer"
    tokens, file, detail = _tokens(draft, name)
    if tokens is None:
        draft.report("vocab_size", _no_vocabulary(draft, name))
        return
    if name.startswith("Null"):
        tokens += 1  # The end-of-document token (_NullTokenizer in tokenizer.py).
    unit = (draft.integer("make_vocab_size_divisible_by") or 128) * draft.tensor
    names = "vocab_size", "tokenizer_type", file, "make_vocab_size_divisible_by"
    padded, padding = padded_vocabulary(tokens, unit)
    otherwise = "default: GPT2BPETokenizer"
    draft.set("model.vocab_size", padded, *names, otherwise=otherwise, detail=detail + padding)


def _tokens(draft: MegatronDraft, kind: str) -> tuple[int | None, str, str]:
    """Return the tokens of the tokenizer, or None if they are unknown.

    Also returns the argument with the name of the tokenizer and what this name stands for, or "".
    """
    if tokens := draft.integer("vocab_size"):
        return tokens, "", ""
    for name in _TOKENIZER_FILES if kind not in _WITHOUT_FILE else ():
        file = draft.given(name)
        if file and (tokenizer := tokenizer_of(file.value)):
            return tokenizer.tokens, name, f"{tokenizer.name}, "
    return TOKENS_OF_TYPES.get(kind), "", ""


def _no_vocabulary(draft: MegatronDraft, kind: str) -> Problem:
    return Problem(
        "E873",
        f"the size of the vocabulary of {kind} is missing",
        draft.place("tokenizer_type"),
        "files of the tokenizer, which are not read, determine it",
        "add --set model.vocab_size=..., with the vocab_size in the config.json of the model whose "
        "tokenizer it is; or --vocab-size or --padded-vocab-size in the arguments",
    )
