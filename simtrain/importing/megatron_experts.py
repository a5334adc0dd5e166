"""Import Megatron-LM's arguments of experts."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from simtrain.importing.expert_layers import dense_and_frequency
from simtrain.importing.megatron_values import wrong

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping
    from simtrain.importing.source import Argument

_DISPATCH = {"allgather": "all_gather", "alltoall": "all_to_all", "flex": "all_to_all"}
_DISPATCH["alltoall_seq"] = "all_to_all"
_FUSIONS = ("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")


def set_mlp(mapping: _Mapping, size: int | None, comment: str) -> None:
    """Set the size of the MLP, and the experts that replace it.

    Args:
        mapping: the import.
        size: ffn_hidden_size of an MLP, and of an expert unless --moe-ffn-hidden-size is set.
        comment: the source of the size.
    """
    experts = mapping.integer("num_experts")
    dense, frequency = _layers(mapping) if experts else (0, 1)
    if size is not None and (experts is None or dense or frequency > 1):
        mapping.draft.set("model.ffn_hidden_size", size, comment, mapping.place("ffn_hidden_size"))
    if experts is None:
        return
    mapping.set("model.experts.num", experts, "num_experts")
    top_k = mapping.integer("moe_router_topk") or 2
    mapping.set("model.experts.top_k", top_k, "moe_router_topk")
    own = mapping.integer("moe_ffn_hidden_size")
    if own is not None:
        mapping.set("model.experts.ffn_hidden_size", own, "moe_ffn_hidden_size")
    elif size is not None:
        mapping.draft.set("model.experts.ffn_hidden_size", size, comment)
    name = "moe_shared_expert_intermediate_size"
    if shared := mapping.integer(name):
        mapping.set("model.experts.shared_ffn_hidden_size", shared, name)
    if dense:
        mapping.set("model.experts.first_dense_layers", dense, "moe_layer_freq")
    if frequency > 1:
        mapping.set("model.experts.layer_frequency", frequency, "moe_layer_freq")
    _set_capacity(mapping)


def _layers(mapping: _Mapping) -> tuple[int, int]:
    """Return first_dense_layers and layer_frequency of --moe-layer-freq."""
    argument = mapping.known("moe_layer_freq")
    if argument is None:
        return 0, 1
    if argument.value.isdecimal() and int(argument.value) > 0:
        return 0, int(argument.value)
    layers = mapping.layers or 0
    try:
        pattern = _list(ast.parse(argument.value.strip(), mode="eval").body, layers)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise wrong(argument, "must be a number, or a list such as ([0]*3+[1]*58)") from None
    if not isinstance(pattern, list) or len(pattern) != layers or not {*pattern} <= {0, 1}:
        raise wrong(argument, f"must contain 0 or 1 for each of the {layers} layers")
    found = dense_and_frequency([one == 1 for one in pattern])
    if found is None:
        raise wrong(
            argument,
            "must start with dense layers, followed by experts in every layer or every nth layer",
        )
    return found


def _list(node: ast.expr, longest: int) -> int | list[int]:
    """Evaluate a Python expression of lists, sums and multiples, with factors up to `longest`."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.List(elts=elements):
            return [ast.literal_eval(one) for one in elements]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = _list(left, longest), _list(right, longest)
            return sides[0] + sides[1]  # type: ignore[operator]
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            if times <= longest:
                return _list(left, longest) * times
    raise ValueError(node)


def _set_capacity(mapping: _Mapping) -> None:
    """Set the capacity factor, if every expert takes equally many tokens.

    A factor below 1 fills every expert even without padding.
    """
    names = "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"
    factor = mapping.decimal(names[0])
    if factor is None or factor < 0:
        return
    if factor < 1 or mapping.flag(names[1]):
        mapping.set("model.experts.capacity_factor", factor, *names)
        return
    argument = mapping.source.arguments[names[0]]
    text = "overloaded experts drop tokens; the scenario drops none"
    mapping.draft.note(argument.words, text, argument.place)


def set_expert_parallelism(mapping: _Mapping) -> None:
    """Set expert parallelism, the token dispatch and the dtype of the router.

    Reads the precision of the draft.
    """
    if not mapping.integer("num_experts"):
        return
    for name in ("expert_model", "expert_tensor"):
        argument = f"{name}_parallel_size"
        if ranks := mapping.integer(argument):
            field = "expert" if name == "expert_model" else name
            mapping.set(f"parallelism.{field}", ranks, argument)
    if mapping.flag("use_torch_fsdp2") and mapping.draft.data["parallelism"].get("expert", 1) > 1:
        # arguments.py refuses this; Megatron-FSDP shards experts over their own replicas.
        fsdp = mapping.source.arguments["use_torch_fsdp2"]
        raise wrong(fsdp, "cannot be combined with expert parallelism")
    name = "moe_token_dispatcher_type"
    dispatch = mapping.choice(name, _DISPATCH, "allgather")
    mapping.set("parallelism.expert_dispatch", dispatch, name)
    _set_router(mapping)
    name = "moe_shared_expert_overlap"
    if mapping.flag(name):
        mapping.set("overlap.shared_expert", True, name)
    missing = [name for name in _FUSIONS if not mapping.flag(name)]
    if missing:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        text = "more and smaller kernels for permutation, experts and router"
        mapping.draft.note(f"no {words}", f"{text}: slower")


def _set_router(mapping: _Mapping) -> None:
    compute = mapping.draft.data["precision"]["compute"]
    argument = mapping.known("moe_router_dtype")
    field = "model.experts.router_dtype"
    if argument is None and compute in ("fp16", "fp32"):
        mapping.draft.set(field, "fp32", f"the model computes in {compute}")
        if compute == "fp16":
            mapping.draft.note("a router in fp16", "smaller products; the scenario has fp32")
    elif argument is not None:
        _check_router(mapping, argument)
        mapping.set(field, "fp32", "moe_router_dtype")
    name = "moe_router_score_function"
    scores = {"softmax": "softmax", "sigmoid": "sigmoid"}
    if mapping.known(name) is not None:
        mapping.set("model.experts.router_score", mapping.choice(name, scores, "softmax"), name)
    if mapping.flag("moe_router_enable_expert_bias"):
        mapping.set("model.experts.router_bias", True, "moe_router_enable_expert_bias")
    groups = "moe_router_num_groups", "moe_router_group_topk"
    for name, field in zip(groups, ("router_groups", "router_group_top_k"), strict=True):
        if number := mapping.integer(name):
            mapping.set(f"model.experts.{field}", number, name)


def _check_router(mapping: _Mapping, argument: Argument) -> None:
    mapping.choice(argument.name, {"fp32": "fp32", "fp64": "fp32"}, "fp32")
    if argument.value == "fp64":
        text = "a slower router; the scenario has fp32"
        mapping.draft.note(argument.words, text, argument.place)
