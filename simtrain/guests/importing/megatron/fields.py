"""Set the fields of a scenario from Megatron-LM's arguments.

Defaults follow Megatron-LM's arguments.py and transformer_config.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import get_args

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError, Problem
from simtrain.guests.importing.draft import DEFAULT, padded_vocabulary
from simtrain.guests.importing.layer_patterns import dense_and_frequency
from simtrain.guests.importing.megatron.arguments import GROUPS, MAPPED, USERBUFFERS
from simtrain.guests.importing.megatron.draft import MegatronDraft, converted, listed, wrong
from simtrain.guests.importing.megatron.source import MegatronSource, read_source, unknown_value
from simtrain.guests.importing.settings import Setting
from simtrain.guests.importing.tokenizers import TOKENS_OF_TYPES, tokenizer_of
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.model import MAMBA, MLP
from simtrain.scenario.parallelism import chunks_of_layout, layout_of_chunks
from simtrain.scenario.section import DEFAULT_MODULES, MODULES
from simtrain.scenario.software import (
    DEFAULT_STACK,
    GraphModule,
    Stack,
    load_stack,
    releases_of,
    split_reference,
    stack_of_framework,
)


def megatron_draft(request: ImportRequest) -> MegatronDraft:
    """Return the draft of a scenario from arguments.

    The source of the request is the arguments, or the path of an argument file, a shell script or a
    log.

    Raises:
        InputError: unreadable sources, unknown arguments, and values and combinations that
            Megatron-LM refuses; all of them that do not depend on each other.
    """
    return draft_of(read_source(request.file, request.env), request)


def draft_of(source: MegatronSource, request: ImportRequest) -> MegatronDraft:
    """Set the fields that the arguments of a source decide, and note what is not modelled.

    Errors are those of `megatron_draft`.
    """
    draft, combinations = MegatronDraft(source, request), list[Problem]()
    try:
        _set_sections(draft)
    except InputError as error:
        # With other problems, it may follow from an argument that was left out.
        combinations += error.problems if not draft.problems else []
    draft.refuse_problems(combinations)
    return draft


def _set_sections(draft: MegatronDraft) -> None:
    draft.use_gpus(draft.tensor, draft.context, draft.pipeline)
    # Later sections read the fields of earlier ones; the file has the sections in this order.
    for set_section in (
        _set_model,
        _set_vocabulary,
        _set_parallelism,
        _set_stages,
        _set_replicas,
        _set_batch,
        _set_recompute,
        _set_memory,
        _set_attention_backend,
        _set_software,
        _set_workspaces,
        _set_precision,
        _set_overlap,
        _set_expert_parallelism,
    ):
        set_section(draft)
    effects = draft.table.not_modelled.items()
    draft.note_effects({name: each for name, each in effects if not _is_neutral(draft, name)})


def _is_neutral(draft: MegatronDraft, name: str) -> bool:
    """Whether an argument that is not modelled has no effect on this scenario, with any value."""
    model = draft.data["model"]
    match name:
        case _ if "moe" in name and "experts" not in model:
            return True
        case "spec" if draft.pattern is not None:
            return True
        case "max_position_embeddings":
            length = draft.given("seq_length")
            is_learned = model["position_embedding"] == "learned"
            argument = draft.given(name)
            is_equal = length and argument and argument.value == length.value
            return not is_learned or length is None or bool(is_equal)
        case "attention_softmax_in_fp32" | "apply_query_key_layer_scaling":
            return bool(draft.data["attention_backend"] == "fused")
    return False


# ------------------------------------------------------------------------------------------- model

_ACTIVATIONS = "swiglu", "quick_geglu", "squared_relu"
"""The flags of activations; without one it is gelu."""
_TOKENIZER_FILES = "tokenizer_model", "tokenizer_name_or_path"
_WITHOUT_FILE = "GPT2BPETokenizer", "MistralTokenizer", "NullTokenizer", "TikTokenizer"
"""Types of tokenizers whose vocabulary does not depend on the model that a file is named after."""


def _set_model(draft: MegatronDraft) -> None:
    # The file has the fields in this order.
    _set_sizes(draft)
    if pattern := draft.pattern:
        draft.set("model.layer_pattern", pattern.letters, pattern.argument.name)
        if MAMBA in pattern.letters:
            draft.copy(*GROUPS["mamba"])
    _set_window(draft)
    draft.copy("mtp_num_layers")
    if draft.flag("multi_latent_attention"):
        _set_latent_attention(draft)
    else:
        draft.copy("kv_channels")
    _set_mlp_size(draft)
    if seq_length := draft.integer("seq_length"):
        draft.set("model.seq_length", seq_length, "seq_length")
    draft.fill("untie_embeddings_and_output_weights")
    activation = next((MAPPED[name].sets for name in _ACTIVATIONS if draft.flag(name)), "gelu")
    draft.set("model.activation", activation, *_ACTIVATIONS)
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
    is_latent = draft.flag("multi_latent_attention")
    qkv_biases = not is_latent and (biases or draft.flag("add_qkv_bias"))
    draft.set("model.qkv_biases", qkv_biases, "add_bias_linear", "add_qkv_bias")
    draft.fill("hidden_dropout", "attention_dropout")


def _set_sizes(draft: MegatronDraft) -> None:
    if draft.layers is not None:
        otherwise = "the letters of the pattern" if draft.pattern else ""
        draft.set("model.num_layers", draft.layers, "num_layers", otherwise=otherwise)
    for name in ("hidden_size", "num_attention_heads"):
        if (size := draft.integer(name)) is not None:
            draft.set(f"model.{name}", size, name)
    names = "group_query_attention", "num_query_groups"
    if "num_attention_heads" in draft.data.get("model", {}) and draft.flag(names[0]):
        draft.set("model.num_query_groups", draft.integer(names[1]) or 1, *names)


def _set_mlp_size(draft: MegatronDraft) -> None:
    """Set the size of the MLP, and of the experts that replace it."""
    hidden, size = draft.integer("hidden_size"), draft.integer("ffn_hidden_size")
    comment = draft.origin("ffn_hidden_size")
    if not size:
        if hidden is None:
            return
        size, comment = 4 * hidden, "default: 4 h"
        if draft.flag("swiglu"):
            # As in arguments.py: about as many parameters as a plain MLP, in multiples of 64.
            size = int((4 * hidden * 2 / 3) / 64) * 64
            comment = "default with --swiglu: 8/3 h, rounded down to 64"
    experts, pattern = draft.integer("num_experts"), draft.pattern
    dense, frequency = _expert_layers(draft) if experts and pattern is None else (0, 1)
    if MLP in pattern.letters if pattern else experts is None or dense or frequency > 1:
        draft.set_because("model.ffn_hidden_size", size, comment, draft.place("ffn_hidden_size"))
    if experts is None:
        return
    draft.fill("num_experts", "moe_router_topk")
    if (expert_size := draft.integer("moe_ffn_hidden_size")) is not None:
        draft.set("model.experts.ffn_hidden_size", expert_size, "moe_ffn_hidden_size")
    else:
        draft.set_because("model.experts.ffn_hidden_size", size, comment)
    draft.copy("moe_shared_expert_intermediate_size")
    if dense:
        draft.set("model.experts.first_dense_layers", dense, "moe_layer_freq")
    if frequency > 1:
        draft.set("model.experts.layer_frequency", frequency, "moe_layer_freq")
    _set_capacity(draft)


def _set_latent_attention(draft: MegatronDraft) -> None:
    if draft.is_local:
        says = "cannot be combined with --multi-latent-attention: its attention has equal heads"
        raise wrong(draft.settings["transformer_impl"], says)
    for name in GROUPS["latent_attention"]:
        if (size := draft.value(name)) is not None:
            setting = name if draft.given(name) else "multi_latent_attention"
            draft.set(MAPPED[name].field, size, setting)


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
    if not argument.value.isdecimal() or int(argument.value) == 0:
        raise wrong(argument, "must be a number; other patterns are not modelled")
    number = int(argument.value)
    return number if number <= (draft.layers or 0) else None


def _set_vocabulary(draft: MegatronDraft) -> None:
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
    tokens, file, detail = _tokens(draft, kind)
    if tokens is None:
        problem = Problem(
            "E873",
            f"the size of the vocabulary of {kind} is missing",
            draft.place("tokenizer_type"),
            "files of the tokenizer, which are not read, determine it",
            "add --set model.vocab_size=..., with the vocab_size in the config.json of the model "
            "whose tokenizer it is; or --vocab-size or --padded-vocab-size in the arguments",
        )
        draft.report("vocab_size", problem)
        return
    if kind.startswith("Null"):
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
            return tokenizer[1], name, f"{tokenizer[0]}, "
    return TOKENS_OF_TYPES.get(kind), "", ""


# ----------------------------------------------------------------------------------------- experts


_REPEATED = re.compile(r"\(?(.*?)(?:\)(?:\*(\d{1,5}))?)?", re.DOTALL)
_LAYERS = re.compile(r"\[([01](?:, *[01])*)\](?:\*(\d{1,5}))?")


def _expert_layers(draft: MegatronDraft) -> tuple[int, int]:
    """Return first_dense_layers and layer_frequency of --moe-layer-freq."""
    argument = draft.known("moe_layer_freq")
    if argument is None:
        return 0, 1
    if argument.value.isdecimal() and int(argument.value) > 0:
        return 0, int(argument.value)
    layers, pattern = draft.layers or 0, list[int]()
    whole = _REPEATED.fullmatch(argument.value.strip("'\" "))
    terms, times = (whole[1], whole[2]) if whole else ("", None)
    for term in terms.split("+"):
        match = _LAYERS.fullmatch(term.strip())
        if match is None or int(match[2] or 1) > layers:
            raise wrong(argument, "must be a number, or a list such as ([0]*3+[1]*58)")
        pattern += [int(layer) for layer in match[1].split(",")] * int(match[2] or 1)
    pattern *= min(int(times or 1), layers)
    if len(pattern) != layers:
        raise wrong(argument, f"must contain 0 or 1 for each of the {layers} layers")
    if numbers := dense_and_frequency([layer == 1 for layer in pattern]):
        return numbers
    says = "must start with dense layers, followed by experts in every layer or every nth layer"
    raise wrong(argument, says)


def _set_capacity(draft: MegatronDraft) -> None:
    """Set the capacity factor, if every expert takes equally many tokens.

    A factor below 1 fills every expert even without padding.
    """
    names = "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"
    factor = draft.decimal(names[0])
    if factor is None or factor < 0:
        return
    if factor < 1 or draft.flag(names[1]):
        draft.set("model.experts.capacity_factor", factor, *names)
        return
    text = "overloaded experts drop tokens; the scenario drops none"
    draft.note(draft.settings[names[0]], text)


def _set_expert_parallelism(draft: MegatronDraft) -> None:
    if not draft.integer("num_experts"):
        return
    draft.copy("expert_model_parallel_size", "expert_tensor_parallel_size")
    _set_dispatcher(draft)
    _set_router(draft)
    draft.copy("moe_shared_expert_overlap")
    if missing := [name for name in GROUPS["fusions_of_experts"] if not draft.flag(name)]:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        text = "more and smaller kernels for permutation, experts and router"
        draft.note(f"no {words}", f"{text}: slower")
    software, precision = draft.data["software"], draft.data["precision"]
    if not releases_of(split_reference(software["stack"])[0]):
        return
    # The source turns off what a release of the stack turns on for experts.
    if "merged_passes" not in draft.data.get("overlap", {}):
        draft.set("overlap.merged_passes", False, _MERGED)
    if precision["compute"] == "fp8" and precision.get("fp8_recipe") == "mxfp8":
        fuser, stash = "use_transformer_engine_op_fuser", "moe_paged_stash"
        draft.set("software.fused_grouped_mlp", draft.flag(fuser), fuser)
        if draft.flag(fuser):
            draft.set("software.paged_stash", draft.flag(stash), stash)


def _set_dispatcher(draft: MegatronDraft) -> None:
    """Set the dispatcher; only the type flex has backends (transformer_config.py)."""
    names = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
    if DISPATCHERS[draft.choice(names[0])].megatron[1] is None:
        draft.fill(names[0])
    else:
        draft.set("parallelism.expert_dispatch", draft.choice(names[1]), *names)


def _set_router(draft: MegatronDraft) -> None:
    compute = draft.data["precision"]["compute"]
    field, name = "model.experts.router_dtype", "moe_router_dtype"
    if argument := draft.known(name):
        if draft.choice(name) == "fp64":
            draft.note(argument, "a slower router; the scenario has fp32")
        draft.set(field, "fp32", name)
    elif compute in ("fp16", "fp32"):
        draft.set_because(field, "fp32", f"the model computes in {compute}")
    if draft.known("moe_router_score_function"):
        draft.fill("moe_router_score_function")
    names = "moe_router_enable_expert_bias", "moe_router_num_groups", "moe_router_group_topk"
    draft.copy(*names)


# ---------------------------------------------------------------------------- parallelism and batch


def _set_parallelism(draft: MegatronDraft) -> None:
    draft.set("parallelism.tensor", draft.tensor, "tensor_model_parallel_size")
    sequence = draft.flag("sequence_parallel")
    if sequence and draft.tensor == 1:
        comment = "Megatron-LM ignores --sequence-parallel without tensor parallelism"
        draft.set_because("parallelism.sequence_parallel", False, comment)
    else:
        draft.fill("sequence_parallel")
    draft.set("parallelism.pipeline", draft.pipeline, "pipeline_model_parallel_size")
    if draft.context > 1:
        _set_context(draft)
    # Since 2023, every rank sends the whole output (p2p_communication.py); only logs of older
    # versions print this argument as on.
    name = "scatter_gather_tensors_in_pipeline"
    scatters = draft.is_printed and draft.flag(name) and not sequence
    comment = draft.origin(name, otherwise="default since 2023")
    draft.set_because("parallelism.scatter_gather", scatters, comment)
    name = "use_tp_pp_dp_mapping"
    if draft.flag(name):
        draft.set("placement.order", MAPPED[name].sets, name)


def _set_context(draft: MegatronDraft) -> None:
    """Set context parallelism; Megatron-LM can choose the communication for each layer."""
    draft.set("parallelism.context", draft.context, "context_parallel_size")
    way = draft.known("cp_comm_type")
    names = {*listed(way)} if way else {"p2p"}
    values = MAPPED["cp_comm_type"].values
    if way and (len(names) > 1 or not names <= values.keys()):
        one_of = ", ".join(values)
        raise wrong(way, f"must be one of {one_of}, and the same for all layers")
    (communication,) = (values[name] for name in names)
    draft.set("parallelism.context_communication", communication, "cp_comm_type")


def _set_stages(draft: MegatronDraft) -> None:
    """Set chunks and their layers, and the layers of the first and last stage."""
    if layout := draft.known("pipeline_model_parallel_layout"):
        # Megatron-LM refuses other settings with it. Logs print flags that are off.
        for name in GROUPS["not_with_layout"]:
            if (other := draft.given(name)) and other.value != "False":
                raise wrong(other, f"cannot be set together with {layout.spelled}")
        try:
            chunks = len(chunks_of_layout(layout.value))
        except ValueError as error:
            raise wrong(layout, f"must be a layout: {error}") from None
        _set_layout(draft, layout.value, chunks, layout.name)
        return
    if draft.pattern and len(draft.pattern.stages) > 1:
        letters = ["t" * len(stage) for stage in draft.pattern.stages]
        letters[0], letters[-1] = f"E{letters[0]}", f"{letters[-1]}L"
        name = draft.pattern.argument.name
        _set_layout(draft, layout_of_chunks(letters), len(letters), name)
        return
    chunks = _set_chunks(draft)
    ends = {
        "first": ("decoder_first_pipeline_num_layers", "account_for_embedding_in_pipeline_split"),
        "last": ("decoder_last_pipeline_num_layers", "account_for_loss_in_pipeline_split"),
    }
    accounted = {end: draft.flag(account) for end, (_, account) in ends.items()}
    slots = (draft.layers or 0) + sum(accounted.values())
    if chunks > 1 and any(accounted.values()) and slots % (draft.pipeline * chunks) == 0:
        # Chunks have equal length, of which embedding and loss take one layer each.
        share = slots // (draft.pipeline * chunks)
        letters = ["t" * share for _ in range(draft.pipeline * chunks)]
        letters[0] = f"E{letters[0][accounted['first'] :]}"
        predictions = "m" * (draft.integer("mtp_num_layers") or 0)
        letters[-1] = f"{letters[-1][accounted['last'] :]}{predictions}L"
        names = (account for _, account in ends.values())
        draft.set("parallelism.layout", layout_of_chunks(letters), *names)
        return
    for end, (argument, account) in ends.items():
        field = f"parallelism.{end}_stage_layers"
        if layers := draft.integer(argument):
            draft.set(field, layers, argument)
        elif accounted[end] and chunks > 1:
            draft.note(draft.settings[account], "one chunk of the stage has one layer less")
        elif accounted[end] and draft.pipeline > 1:
            share, rest = divmod(slots, draft.pipeline)
            if rest:
                says = f"leaves {slots} layers, with embedding and loss, for {draft.pipeline}"
                raise wrong(draft.settings[account], f"{says} stages: not a multiple")
            draft.set(field, share - 1, account)


def _set_layout(draft: MegatronDraft, layout: str, num_chunks: int, name: str) -> None:
    draft.set("parallelism.layout", layout, name)
    if num_chunks >= 2 * draft.pipeline:
        draft.set("parallelism.interleave", num_chunks // draft.pipeline, name)
        _set_groups(draft)


def _set_chunks(draft: MegatronDraft) -> int:
    """Set the chunks per rank; return their number."""
    names = (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "virtual_pipeline_model_parallel_size",
    )
    per_chunk, per_rank, printed = map(draft.integer, names)
    chunks = per_rank or printed or 1
    if per_chunk and draft.layers and not (per_rank or printed):
        chunks, rest = divmod(draft.layers, draft.pipeline * per_chunk)
        if rest or not chunks:
            says = f"does not divide {draft.layers} layers into equal chunks"
            raise wrong(draft.settings[names[0]], says)
    if chunks > 1:
        draft.set("parallelism.interleave", chunks, *names)
        _set_groups(draft)
    return chunks


def _set_groups(draft: MegatronDraft) -> None:
    """Set the microbatches of a group, unless they are as many as stages."""
    name = "microbatch_group_size_per_vp_stage"
    size = draft.integer(name)
    if size and size != draft.pipeline:
        draft.set("parallelism.microbatch_group_size", size, name)


def _set_replicas(draft: MegatronDraft) -> None:
    """Set the data-parallel replicas, from the number of GPUs."""
    if data := draft.override("parallelism.data"):
        draft.set_because("parallelism.data", data, "--set")
        return
    world, names = _world(draft)
    if world is None:
        data = draft.integer("data_parallel_size") or 1
        draft.set("parallelism.data", data, "data_parallel_size", otherwise=DEFAULT)
        return
    ranks = draft.tensor * draft.pipeline * draft.context
    place = next((setting.place for setting in draft.launch), draft.place("world_size"))
    if world % ranks:
        problem = Problem(
            "E872",
            f"{world} GPUs ({names}) are not a multiple of tensor x pipeline x context "
            f"parallelism, {draft.tensor} x {draft.pipeline} x {draft.context} = {ranks}",
            place,
            f"each replica of the model has {ranks} ranks",
            f"add --gpus {ranks}, or another multiple of {ranks}",
        )
        draft.report("launch", problem)
    comment = f"{names}: {world} GPUs / {ranks} per replica"
    draft.set_because("parallelism.data", world // ranks, comment, place)


def _world(draft: MegatronDraft) -> tuple[int | None, str]:
    """Return the number of GPUs, if the source has it, and the arguments that set it."""
    if world := draft.integer("world_size"):
        return world, draft.origin("world_size")
    effect = "it decides the number of GPUs"
    for setting in draft.launch:
        unknown, message = setting.unknown, f"{setting.spelled} is {setting.unknown}"
        if unknown and unknown.startswith("$"):
            problem = unknown_value(message, setting, setting.place, "--gpus N", effect)
            draft.report(setting.name, problem)
        elif unknown:
            message, fix = f"{message}, not a number", "add --gpus N"
            draft.report(setting.name, Problem("E872", message, setting.place, effect, fix))
    if not draft.launch or any(setting.unknown for setting in draft.launch):
        return None, ""
    counts = [converted(setting, int, "an integer") for setting in draft.launch]
    return math.prod(counts), " x ".join(setting.spelled for setting in draft.launch)


def _set_batch(draft: MegatronDraft) -> None:
    micro = draft.override("batch.micro") or draft.integer("micro_batch_size") or 1
    draft.set("batch.micro", micro, "micro_batch_size", otherwise=DEFAULT)
    if total := draft.integer("global_batch_size"):
        draft.set("batch.global", total, "global_batch_size")
    else:
        total = micro * draft.data["parallelism"]["data"]
        draft.set_because("batch.global", total, f"{DEFAULT}; micro x data, as Megatron-LM")


# ---------------------------------------------------------------------------- recompute and memory

MODULE_NAMES = {"core_attn": "core_attention"} | {
    module: module for module in MODULES if module != "core_attention"
}
"""Our names of the modules that Megatron-LM recomputes."""


def _set_memory(draft: MegatronDraft) -> None:
    """Set the ZeRO stage, and the number of replicas that shard states."""
    stage, names = _zero_stage(draft)
    data = draft.data["parallelism"]["data"]
    name = "num_distributed_optimizer_instances"
    instances = draft.integer(name) or 1
    # Megatron-LM shards over data and context parallel ranks together.
    ranks, rest = divmod(data * draft.context, instances)
    if rest:
        says = f"does not divide {data * draft.context} data x context parallel ranks"
        raise wrong(draft.settings[name], says)
    if stage and ranks == 1:
        where = "one rank in each instance" if instances > 1 else "one replica"
        comment = f"{draft.origin(*names, name)} has no effect with {where}"
        draft.set_because("memory.zero_stage", 0, comment)
    elif stage > 1 and draft.pipeline > 1:
        text = "ZeRO stages 2 and 3 in a pipeline are not modelled: the scenario has stage 1"
        draft.note(draft.origin(*names), text)
        draft.set("memory.zero_stage", 1, *names)
    else:
        draft.set("memory.zero_stage", stage, *names)
    if instances > 1 and draft.data["memory"]["zero_stage"]:
        if data % instances:
            raise wrong(draft.settings[name], f"does not divide {data} replicas: not modelled")
        detail = f"{data} replicas / {instances}"
        draft.set("memory.shard_over", data // instances, name, detail=detail)
    if draft.data["memory"]["zero_stage"] == 3:
        draft.copy("torch_fsdp2_reshard_after_forward")
    draft.copy("optimizer_cpu_offload", "cpu_optimizer")


def _zero_stage(draft: MegatronDraft) -> tuple[int, tuple[str, ...]]:
    """Return the ZeRO stage, and the arguments that set it."""
    if draft.flag("use_torch_fsdp2"):
        return 3, ("use_torch_fsdp2",)
    if draft.flag("use_megatron_fsdp"):
        name = "data_parallel_sharding_strategy"
        return draft.choice(name), ("use_megatron_fsdp", name)
    return int(draft.flag("use_distributed_optimizer")), ("use_distributed_optimizer",)


def _named_modules(argument: Setting, known: Collection[str]) -> list[str]:
    """Return the modules that an argument lists.

    Raises:
        InputError: one of them is not known (E872).
    """
    named = listed(argument)
    if unknown := [name for name in named if name not in known]:
        says = f"has {unknown[0]}, which is not modelled; write some of {', '.join(known)}"
        raise wrong(argument, says)
    return named


def _set_recompute(draft: MegatronDraft) -> None:
    """Set the strategy, its modules or units, and the microbatches without recompute."""
    names = ["recompute_granularity", "recompute_activations"]
    default = "selective" if draft.flag("recompute_activations") else "none"
    strategy = draft.choice("recompute_granularity", default)
    if draft.flag("checkpoint_activations"):
        # Megatron-LM before 2022.
        strategy = "full"
        names.append("checkpoint_activations")
    draft.set("recompute.strategy", strategy, *names)
    if strategy == "selective":
        _set_recomputed_modules(draft)
    if strategy == "full":
        draft.fill("recompute_method", "recompute_num_layers")
    draft.copy("num_microbatches_with_partial_activation_checkpoints")


def _set_recomputed_modules(draft: MegatronDraft) -> None:
    argument = draft.known("recompute_modules")
    named = _named_modules(argument, MODULE_NAMES) if argument else ["core_attn"]
    modules = {MODULE_NAMES[name] for name in named}
    ignored = modules & _absent_modules(draft)
    if draft.given("fp4"):
        unmodelled = (modules - ignored) & {"layernorm", "moe_act"}
        for module in sorted(unmodelled):
            text = "less memory, but inputs are cast twice"
            draft.note(f"--recompute-modules {module} with fp4", text)
        ignored |= unmodelled
    recomputed = [module for module in MODULES if module in modules - ignored]
    names = ("recompute_modules",)
    if not recomputed:
        comment = f"{draft.origin(*names)}: none of these modules is recomputed"
        draft.set_because("recompute.strategy", "none", comment, draft.place(*names))
    elif recomputed != [*DEFAULT_MODULES]:
        detail = f"not {', '.join(sorted(ignored))}, which no layer has" if ignored else ""
        draft.set("recompute.modules", recomputed, *names, detail=detail)


def _absent_modules(draft: MegatronDraft) -> set[str]:
    """Return the modules that Megatron-LM accepts, although no layer has them."""
    model = draft.data["model"]
    experts, has_latents = model.get("experts"), "latent_attention" in model
    absent = set() if experts else {"moe", "shared_experts"}
    if experts and "shared_ffn_hidden_size" not in experts:
        absent.add("shared_experts")
    if experts and not {"first_dense_layers", "layer_frequency"} & experts.keys():
        absent.add("mlp")
    # Transformer Engine's norms are parts of linear layers, unless several layers read a norm.
    if not (experts or has_latents or draft.is_local):
        absent.add("layernorm")
    return absent


# ---------------------------------------------------------------------------- kernels and precision

_WHOLE = "full_iteration"
"""Scope of one CUDA graph of all forward and backward passes of an iteration."""
_GRAPHS = ("enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")
_WORD = re.compile(r"\b[a-z_]+\b")
_FP32 = ("fp32", "float32")


def _set_attention_backend(draft: MegatronDraft) -> None:
    names = ["attention_backend", "use_flash_attn", "transformer_impl"]
    backend, otherwise = draft.choice(names[0]), "default of Megatron-LM: auto, a fused kernel"
    if draft.is_local and not draft.given("attention_backend"):
        backend = "fused" if draft.flag("use_flash_attn") else "unfused"
    draft.set("attention_backend", backend, *names, otherwise=otherwise)


def _set_software(draft: MegatronDraft) -> None:
    """Set the software stack, and the entries that arguments change and that have an effect."""
    stack, comment = stack_of_framework(draft.tool) or DEFAULT_STACK, "the framework of the source"
    old = next(filter(draft.given, GROUPS["until_2022"]), None)
    if old and not any(map(draft.given, GROUPS["since_2023"])):
        stack, comment = "megatron_2022", draft.origin(old)
    draft.set_because("software.stack", stack, comment)
    model = draft.data["model"]
    biases = model["biases"]
    matters = {
        "masked_softmax_fusion": draft.data["attention_backend"] == "unfused",
        "apply_rope_fusion": model["position_embedding"] == "rope",
        "bias_swiglu_fusion": model["activation"] == "swiglu",
        "bias_gelu_fusion": model["activation"] == "gelu" and biases,
        "bias_dropout_fusion": biases or model["hidden_dropout"] > 0,
        "gradient_accumulation_fusion": True,
    }
    draft.copy(*filter(matters.get, matters))
    is_fused = draft.flag("cross_entropy_loss_fusion")
    if is_fused or load_stack(stack).facts["fused_cross_entropy"]:
        draft.fill("cross_entropy_loss_fusion")
    _set_graphs(draft, load_stack(stack))
    if is_fused:
        draft.fill("cross_entropy_fusion_impl")


def _set_graphs(draft: MegatronDraft, stack: Stack) -> None:
    """Set the CUDA graphs: of whole passes, or of parts of layers.

    With --cuda-graph-scope, later named modules, recomputed kernels run outside of CUDA graphs,
    except in a graph of the whole iteration.
    """
    settings = {name: draft.known(name) for name in _GRAPHS}
    off = ("none", "False")
    names = [name for name, setting in settings.items() if setting and setting.value not in off]
    if not names:
        if releases_of(stack.name):
            draft.set("software.cuda_graphs", False, *_GRAPHS)
        return
    scope = draft.known("cuda_graph_scope") or draft.known("cuda_graph_modules")
    words = _WORD.findall(scope.value) if scope else []
    if scope and words and not {*words} & {_WHOLE, "full"}:
        modules = [word for word in words if word in get_args(GraphModule)]
        if others := [word for word in words if word not in modules]:
            kernels = "the host launches the kernels one by one"
            draft.note(scope, f"CUDA graphs of {', '.join(others)} are not modelled: {kernels}")
        draft.set("software.cuda_graph_modules", modules, scope.name)
        return
    recomputes = draft.data["recompute"]["strategy"] != "none"
    if scope and recomputes and _WHOLE in words and not stack.facts["recompute_in_cuda_graphs"]:
        draft.note(scope, f"CUDA graphs with recompute, which {stack.name} refuses: faster")
        return
    draft.set("software.cuda_graphs", True, *names)


def _set_workspaces(draft: MegatronDraft) -> None:
    """Set the workspaces of products that differ from those of the stack.

    PyTorch's deterministic algorithms need a fixed `CUBLAS_WORKSPACE_CONFIG`, of which ":4096:8" is
    the larger and the one that keeps the speed (torch.use_deterministic_algorithms).
    """
    if draft.flag("deterministic_mode"):
        detail = "CUBLAS_WORKSPACE_CONFIG is taken as :4096:8"
        draft.set("software.cublas_workspace", "32 MiB", "deterministic_mode", detail=detail)
    if draft.is_local:
        draft.set("software.linear_workspaces", 0, "transformer_impl")
    if "experts" not in draft.data["model"]:
        return
    legacy = "moe_use_legacy_grouped_gemm"
    if draft.is_local or draft.flag(legacy):
        draft.set("software.expert_workspaces", 0, "transformer_impl", legacy)
    elif not draft.flag("moe_grouped_gemm"):
        comment = "no --moe-grouped-gemm: products of one expert after another"
        draft.set_because("software.expert_workspaces", 0, comment)


def _set_precision(draft: MegatronDraft) -> None:
    """Set the dtypes of products, gradients, weights and optimizer states."""
    bf16, fp16 = draft.flag("bf16"), draft.flag("fp16")
    fp8, fp4 = draft.given("fp8"), draft.given("fp4")
    trained = "bf16" if bf16 and not fp16 else "fp16" if fp16 else "fp32"
    if fp8 and fp4:
        raise wrong(fp4, f"excludes {fp8.spelled}, which is set too")
    if fp8:
        draft.set("precision.compute", "fp8", "fp8")
        draft.fill("fp8_recipe")
    elif fp4:
        draft.set("precision.compute", draft.choice("fp4_recipe"), "fp4", "fp4_recipe")
    elif bf16 or fp16:
        name = "bf16" if bf16 else "fp16"
        draft.set("precision.compute", name, name)
    else:
        draft.set_because("precision.compute", "fp32", "neither --bf16 nor --fp16")
        comment = "fused kernels support only 16-bit numbers"
        draft.set_because("attention_backend", "unfused", comment)
    if (fp8 or fp4) and draft.flag("first_last_layers_bf16"):
        for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
            draft.set(MAPPED[name].field, draft.value(name), name, "first_last_layers_bf16")
    names = ("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16")
    gradients = "fp16" if fp16 and not draft.flag(names[0]) else "fp32"
    if bf16 and draft.flag(names[1]):
        gradients = "bf16"
    with_flag = trained if trained == "fp32" else f"--{trained}"
    otherwise = f"default of Megatron-LM with {with_flag}"
    draft.set("precision.gradients", gradients, *names, otherwise=otherwise)
    keeps_fp8 = _set_weights(draft) if fp8 else False
    if draft.data["memory"]["zero_stage"] == 1:
        _set_narrow_states(draft, keeps_fp32=not bf16 or keeps_fp8)


def _set_weights(draft: MegatronDraft) -> bool:
    """Set whether weights, which sharded optimizers gather, are kept in fp8; return it."""
    names = "fp8_param_gather", "fp8_param"
    setting = draft.given(names[0]) or draft.given(names[1])
    keeps, otherwise = setting is not None and any(map(draft.flag, names)), f"{names[0]} is off"
    stage, recipe = draft.data["memory"]["zero_stage"], draft.data["precision"]["fp8_recipe"]
    if setting is None or not keeps:
        if recipe in load_stack(draft.data["software"]["stack"]).facts["trained_fp8_recipes"]:
            draft.set("precision.fp8_parameters", False, *names, otherwise=otherwise)
        return False
    if stage not in (1, 3):
        return False
    if (stage == 3 and recipe == "mxfp8") or draft.flag("use_torch_fsdp2"):
        text = "weights gathered and kept in fp8: fewer bytes; the scenario has bf16"
        draft.note(setting, text)
        return False
    draft.set("precision.fp8_parameters", True, *names)
    return True


def _set_narrow_states(draft: MegatronDraft, *, keeps_fp32: bool) -> None:
    """Set the dtypes of the precision-aware optimizer (with the distributed optimizer only).

    Args:
        draft: the import.
        keeps_fp32: whether main parameters are whole fp32 numbers, because weights are not in bf16.
    """
    if not draft.flag("use_precision_aware_optimizer") or draft.flag("optimizer_cpu_offload"):
        return
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        argument = draft.known(name)
        dtype = argument.value.rpartition(".")[2] if argument else "fp32"
        if dtype in ("bf16", "bfloat16"):
            draft.set(MAPPED[name].field, "bf16", name)
        elif argument and dtype not in _FP32:
            draft.note(argument, "narrower optimizer states: less memory; the scenario has fp32")
    main = draft.known("main_params_dtype")
    if main and main.value.rpartition(".")[2] not in _FP32:
        draft.note(main, "narrower main parameters: less memory; the scenario has fp32")
    elif not keeps_fp32:
        names = "main_params_dtype", "use_precision_aware_optimizer"
        detail = "store_param_remainders is the default"
        draft.set("precision.main_parameters", "remainder", *names, detail=detail)


# ----------------------------------------------------------------------------------------- overlap

_MERGED = "overlap_moe_expert_parallel_comm"


def _set_overlap(draft: MegatronDraft) -> None:
    """Set the overlap of pipeline transfers, tensor-parallel and data-parallel collectives.

    Overlapped transfers and alignment are defaults of Megatron-LM, and so of its software stack for
    each layout. A field is set only if an argument turns off what the layout would have; a log also
    prints arguments that validate_args turned off for a layout that cannot have them.
    """
    data, stage = draft.data, draft.data["memory"]["zero_stage"]
    interleaves = "interleave" in data["parallelism"]
    if interleaves:
        draft.copy("overlap_p2p_comm")
    if draft.flag("tp_comm_overlap"):
        if text := _unmodelled_userbuffers(draft):
            draft.note(draft.settings["tp_comm_overlap"], text)
        else:
            draft.copy("tp_comm_overlap")
            draft.note_effects(USERBUFFERS)
    if draft.flag(_MERGED) and (stage > 1 or data["recompute"]["strategy"] == "full"):
        text = "all-to-alls overlap with another microbatch: faster, but more memory"
        draft.note(draft.settings[_MERGED], text)
    elif draft.flag(_MERGED):
        draft.copy(_MERGED, "delay_wgrad_compute")
    _set_data_parallel(draft, interleaves)


def _unmodelled_userbuffers(draft: MegatronDraft) -> str:
    """Return why the userbuffers of a source are not modelled; "" if they are."""
    model, precision = draft.data["model"], draft.data["precision"]
    if draft.is_local:
        return "no effect with --transformer-impl local"
    if "latent_attention" in model or "mtp_num_layers" in model:
        return "pipelines some products with their collectives: faster"
    is_fp4 = precision["compute"] == "fp4"
    if is_fp4 or precision.get("fp8_recipe", "delayed") not in ("delayed", "tensorwise"):
        return "pipelines products of this recipe with their collectives: faster"
    return ""


def _set_data_parallel(draft: MegatronDraft, interleaves: bool) -> None:
    """Set the overlap of gradient reduction and parameter gather with compute.

    Buckets are set only if they have an effect: Megatron-LM ignores them without
    --overlap-grad-reduce. Megatron-FSDP and PyTorch's FSDP2 always overlap the collectives of
    sharded gradients and parameters.
    """
    stage = draft.data["memory"]["zero_stage"]
    if stage > 1:
        draft.set("overlap.data_parallel", True, *_zero_stage(draft)[1])
        return
    reduces = draft.flag("overlap_grad_reduce")
    draft.fill("overlap_grad_reduce")
    if not reduces or draft.data["parallelism"]["data"] * draft.context == 1:
        return
    gathers = stage == 1 and draft.flag("overlap_param_gather")
    stack = load_stack(draft.data["software"]["stack"])
    if gathers or (stage == 1 and stack.facts["overlap_parameter_gather"]):
        draft.fill("overlap_param_gather")
    buckets = draft.integer("ddp_bucket_size") or "megatron"
    draft.set("overlap.gradient_buckets", buckets, "ddp_bucket_size")
    if draft.pipeline > 1:
        draft.copy("align_grad_reduce")
    if gathers and interleaves:
        draft.copy("align_param_gather")
