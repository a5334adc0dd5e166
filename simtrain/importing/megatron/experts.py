"""Import Megatron-LM's arguments of experts."""

from __future__ import annotations

import ast

from simtrain.importing.layer_patterns import dense_and_frequency
from simtrain.importing.megatron.draft import MegatronDraft, wrong
from simtrain.scenario.dispatchers import DISPATCHERS, DeepEP
from simtrain.scenario.model import MLP
from simtrain.scenario.releases import split_reference
from simtrain.scenario.software import releases_of

_FUSIONS = ("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")


def set_mlp(draft: MegatronDraft, size: int, comment: str) -> None:
    """Set the size of the MLP, and the experts that replace it.

    Args:
        draft: the import.
        size: ffn_hidden_size of an MLP, and of an expert unless --moe-ffn-hidden-size is set.
        comment: the source of the size.
    """
    experts = draft.integer("num_experts")
    pattern = draft.pattern
    dense, frequency = _layers(draft) if experts and pattern is None else (0, 1)
    is_read = MLP in pattern.letters if pattern else experts is None or dense or frequency > 1
    if is_read:
        draft.set_because("model.ffn_hidden_size", size, comment, draft.place("ffn_hidden_size"))
    if experts is None:
        return
    draft.fill("num_experts", "moe_router_topk")
    ffn_hidden_size = draft.integer("moe_ffn_hidden_size")
    if ffn_hidden_size is not None:
        draft.set("model.experts.ffn_hidden_size", ffn_hidden_size, "moe_ffn_hidden_size")
    else:
        draft.set_because("model.experts.ffn_hidden_size", size, comment)
    draft.copy("moe_shared_expert_intermediate_size")
    if dense:
        draft.set("model.experts.first_dense_layers", dense, "moe_layer_freq")
    if frequency > 1:
        draft.set("model.experts.layer_frequency", frequency, "moe_layer_freq")
    _set_capacity(draft)


def _layers(draft: MegatronDraft) -> tuple[int, int]:
    """Return first_dense_layers and layer_frequency of --moe-layer-freq."""
    argument = draft.known("moe_layer_freq")
    if argument is None:
        return 0, 1
    if argument.value.isdecimal() and int(argument.value) > 0:
        return 0, int(argument.value)
    layers = draft.layers or 0
    try:
        pattern = _list(ast.parse(argument.value.strip(), mode="eval").body, layers)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise wrong(argument, "must be a number, or a list such as ([0]*3+[1]*58)") from None
    if not isinstance(pattern, list) or len(pattern) != layers or not {*pattern} <= {0, 1}:
        raise wrong(argument, f"must contain 0 or 1 for each of the {layers} layers")
    numbers = dense_and_frequency([layer == 1 for layer in pattern])
    if numbers is None:
        raise wrong(
            argument,
            "must start with dense layers, followed by experts in every layer or every nth layer",
        )
    return numbers


def _list(node: ast.expr, longest: int) -> int | list[int]:
    """Evaluate a Python expression of lists, sums and multiples, with factors up to `longest`."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.List(elts=elements):
            return [ast.literal_eval(element) for element in elements]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = _list(left, longest), _list(right, longest)
            return sides[0] + sides[1]  # type: ignore[operator]
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            if times <= longest:
                return _list(left, longest) * times
    raise ValueError(node)


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


def set_expert_parallelism(draft: MegatronDraft) -> None:
    """Set expert parallelism, the token dispatch and the router."""
    if not draft.integer("num_experts"):
        return
    draft.copy("expert_model_parallel_size", "expert_tensor_parallel_size")
    if draft.flag("use_torch_fsdp2") and draft.data["parallelism"].get("expert", 1) > 1:
        # arguments.py refuses this; Megatron-FSDP shards experts over their own replicas.
        fsdp = draft.settings["use_torch_fsdp2"]
        raise wrong(fsdp, "cannot be combined with expert parallelism")
    _set_dispatcher(draft)
    _set_router(draft)
    draft.copy("moe_shared_expert_overlap")
    missing = [name for name in _FUSIONS if not draft.flag(name)]
    if missing:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        text = "more and smaller kernels for permutation, experts and router"
        draft.note(f"no {words}", f"{text}: slower")
    _turn_off(draft)


def _turn_off(draft: MegatronDraft) -> None:
    """Turn off what a release of the stack turns on for experts, unless the source does."""
    software, precision = draft.data["software"], draft.data["precision"]
    if not releases_of(split_reference(software["stack"])[0]):
        return
    if "merged_passes" not in draft.data.get("overlap", {}):
        draft.set("overlap.merged_passes", False, "overlap_moe_expert_parallel_comm")
    if precision["compute"] == "fp8" and precision.get("fp8_recipe") == "mxfp8":
        fuser, stash = "use_transformer_engine_op_fuser", "moe_paged_stash"
        draft.set("software.fused_grouped_mlp", draft.flag(fuser), fuser)
        if draft.flag(fuser):
            draft.set("software.paged_stash", draft.flag(stash), stash)


def _set_dispatcher(draft: MegatronDraft) -> None:
    """Set the dispatcher; only the type flex has backends (transformer_config.py)."""
    names = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep"
    default = draft.choice(names[0])
    if DISPATCHERS[default].megatron[1] is None:
        draft.fill(names[0])
        if draft.flag(names[2]):
            raise wrong(draft.settings[names[2]], "needs --moe-token-dispatcher-type flex")
        return
    name = DeepEP.name if draft.flag(names[2]) else draft.choice(names[1])
    draft.set("parallelism.expert_dispatch", name, *names)


def _set_router(draft: MegatronDraft) -> None:
    compute = draft.data["precision"]["compute"]
    field, name = "model.experts.router_dtype", "moe_router_dtype"
    if argument := draft.known(name):
        if draft.choice(name) == "fp64":
            draft.note(argument, "a slower router; the scenario has fp32")
        draft.set(field, "fp32", name)
    elif compute in ("fp16", "fp32"):
        draft.set_because(field, "fp32", f"the model computes in {compute}")
        if compute == "fp16":
            draft.note("a router in fp16", "smaller products; the scenario has fp32")
    name = "moe_router_score_function"
    if draft.known(name):
        draft.set("model.experts.router_score", draft.choice(name), name)
    draft.copy("moe_router_enable_expert_bias")
    draft.copy("moe_router_num_groups", "moe_router_group_topk")
