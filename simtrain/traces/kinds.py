"""Kinds of kernels: what the names of kernels, and of the ops that launched them, say.

A new kind is an entry of `KINDS`. Names are those of PyTorch, Triton, cuBLAS, CUTLASS, cuDNN, Apex,
Transformer Engine, FlashAttention, DeepEP, DeepGEMM and NCCL, and of simtrain's own ops.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a kernel counts as beside others that run at the same time."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class KernelKind:
    """A kind of kernels.

    Args:
        name: key in JSON and CSV.
        label: what people read.
        role: compute, communication or copies.
        kernels: pattern of names of kernels.
        ops: pattern of names of the ops that launch them, for kernels whose names say too little.
        is_grouped: whether its kernels are told apart by the size of their group of ranks.
        is_ordered: whether frameworks launch the same of them in the same order. Of other kinds
            each framework fuses its own.
    """

    name: str
    label: str
    role: Role
    kernels: re.Pattern[str] | None = None
    ops: re.Pattern[str] | None = None
    is_grouped: bool = False
    is_ordered: bool = False


def _kind(
    name: str,
    label: str,
    kernels: str = "",
    ops: str = "",
    role: Role = Role.COMPUTE,
    is_grouped: bool = False,
    is_ordered: bool = False,
) -> KernelKind:
    of_kernels, of_ops = (
        re.compile(text, re.IGNORECASE) if text else None for text in (kernels, ops)
    )
    is_ordered = is_ordered or role is Role.COMMUNICATION
    return KernelKind(name, label, role, of_kernels, of_ops, is_grouped, is_ordered)


_SENDS = Role.COMMUNICATION
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, TRANSFER, DISPATCH, COMBINE, OTHER, COPY = (
    _kind(
        "all_reduce",
        "all-reduce",
        r"nccl.*all_?reduce|cross_device_reduce|all-reduce",
        r"all_?reduce",
        _SENDS,
        True,
    ),
    _kind("all_gather", "all-gather", r"nccl.*all_?gather", r"all_?gather", _SENDS, True),
    _kind(
        "reduce_scatter",
        "reduce-scatter",
        r"nccl.*reduce_?scatter",
        r"reduce_?scatter",
        _SENDS,
        True,
    ),
    _kind("all_to_all", "all-to-all", r"nccl.*all_?to_?all", r"all_?to_?all", _SENDS, True),
    _kind(
        "transfer",
        "transfers between stages",
        r"nccl.*send_?recv",
        r"(c10d|nccl|gloo):+(send|recv|isend|irecv)|batch_isend_irecv",
        _SENDS,
    ),
    _kind("dispatch", "dispatch to experts", r"ep::\w+::dispatch\b|^dispatch", "", _SENDS),
    _kind("combine", "combine of experts", r"ep::\w+::combine\b|^combin", "", _SENDS),
    _kind("other", "other"),
    _kind("copy", "copies of memory", r"^mem(cpy|set)\b", role=Role.COPY),
)
OTHER_COLLECTIVE = _kind(
    "other_collective", "other collectives", r"^nccl", r"^(c10d|nccl|gloo)", _SENDS, True
)
ATTENTION = _kind(
    "attention",
    "attention",
    r"flash(_|::|attn)|\bfmha|_fmha|attention.*(kernel|fwd|bwd)|sdpa|compute_attn|"
    r"scaled_.*softmax|softmax_warp|fused attention|^softmax\b|_attn_(fwd|bwd)",
    r"scaled_dot_product|_flash_attention|_efficient_attention|FlashAttn|FusedAttn|aten::_?softmax",
    is_ordered=True,
)
PRODUCTS = _kind(
    "products",
    "matrix products",
    r"(?<!trans)(?<!fb)gemm(?!\w*::utils)|cutlass|xmma|nvjet|splitk|\bcublas|gemv|_mm_kernel|"
    r"implicit_convolve|dgrad|wgrad|fprop|conv2d|conv_kernel",
    r"aten::(mm|addmm|bmm|baddbmm|linear|matmul|_scaled_mm|_grouped_mm|convolution\w*|conv\dd|"
    r"mkldnn_\w+|mkl_linear)$",
    is_ordered=True,
)
OPTIMIZER = _kind(
    "optimizer",
    "optimizer",
    r"multi_tensor_apply|adam(?!.*embedding)|sgd_|lambfunctor|adagrad(?!.*embedding)|"
    r"^gradient (average|clip|norm|zero)$|"
    r"^master weights",
    r"aten::_(fused|foreach)_|^optimizer\.",
)
KINDS: tuple[KernelKind, ...] = (
    # The first kind whose pattern is in a name has it, so that special names stand before others.
    COPY,
    _kind(
        "expert_wait",
        "waiting for other expert ranks",
        r"ep::\w+::\w*notify|ep::\w+::barrier",
        role=_SENDS,
    ),
    DISPATCH,
    COMBINE,
    REDUCE_SCATTER,
    ALL_REDUCE,
    ALL_GATHER,
    ALL_TO_ALL,
    TRANSFER,
    _kind(
        "broadcast", "broadcast", r"nccl.*broadcast|nccl.*_reduce_", r"broadcast_$", _SENDS, True
    ),
    OTHER_COLLECTIVE,
    OPTIMIZER,
    _kind(
        "embedding",
        "embedding",
        r"embedding|^positions?\b|indexSelect(?!.*perm)",
        r"embedding",
    ),
    _kind(
        "loss",
        "logits and loss",
        r"nll_loss|cross_?entropy|cross entropy|log_?softmax|^logits (?!input|weight)|^loss|"
        r"exponentials|softmax of logits",
        r"nll_loss|cross_entropy|log_softmax",
    ),
    _kind(
        "norms",
        "norms",
        r"(layer|rms|batch|group)_?norm|\bln_(fwd|bwd)|ln_(fwd|bwd)_|_norm_(fwd|bwd)|\bbn_(fw|bw)|"
        r"norm(alization)?( gradient)?$|layernorm",
        r"layer_norm|rms_norm|batch_norm|group_norm|LayerNorm|RMSNorm",
        is_ordered=True,
    ),
    _kind(
        "scan",
        "scans of Mamba-2",
        r"chunk_(scan|state|cumsum)|bmm_chunk|state_passing|causal_conv1d|selective_scan|"
        r"^chunk (scan|state|cumsum|scores)|^state passing|^causal convolution|"
        r"^(B|C|gate|scores|state|decay) gradient",
        r"Mamba|causal_conv1d",
    ),
    ATTENTION,
    _kind(
        "activations",
        "activations and dropout",
        r"gelu|silu|swiglu|relu|dropout|sigmoid(?!.*router)|geglu",
        r"aten::\w*(gelu|silu|relu|dropout|sigmoid|tanh)|swiglu",
    ),
    _kind(
        "casts",
        "casts, scales and transposes",
        r"cast|quantize|_to_fp8|to fp[48]( again| by columns)?$|to columns$|(to|from) \d+ bits$|"
        r"_to_hfp8|transpose|amax|^logits (to|from) fp32|"
        r"nchwToNhwc|nhwcToNchw",
        r"quantize|Float8|aten::_to_copy|fp8",
    ),
    _kind(
        "permutation",
        "permutation of tokens",
        r"permute|expand_to_fused|reduce_fused|sort_chunks|^sort by|^unpermute|padding|moe_align",
        r"permute|index_put|scatter_add",
    ),
    _kind(
        "routing",
        "routing of tokens",
        r"topk|top-k|router|get_fused_mapping|count_expert|dispatch_layout|auxiliary loss|"
        r"^tokens per expert|^group (mask|scores)|^best of each|^masked scores|bitonic",
        r"topk|router",
    ),
    PRODUCTS,
    _kind("rotary", "rotary embedding", r"rotary|rope|rotation", r"rotary|rope"),
    _kind(
        "sums",
        "sums, joins and elementwise",
        r"residual|elementwise|CatArray|reduce_kernel|^(join|merge) |\bsum$|bias|copy_tensor|"
        r"copy|triton_(poi|red|per)",
        r"aten::(add|sub|mul|div|neg|cat|copy_|sum|mean|clone|fill_|zero_|pow|where)",
    ),
)
"""All kinds but `OTHER`, in the order in which names are tried."""
_GENERIC = re.compile(
    r"elementwise|reduce_kernel|CatArray|triton_|copy|RadixSort|DeviceScan", re.IGNORECASE
)
"""Kernels that many ops share: the name of the op says more."""
OPTIMIZER_STEP = "Optimizer.step"
"""What the profiler writes around the steps of optimizers."""
OUR_PREFIXES = re.compile(r"^(ncclDevKernel |Memcpy DtoD )")
"""What simtrain's traces write before the names of ops, so that other programs know them."""


@functools.lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str, op: str = "", step: str = "") -> KernelKind:
    """Return the kind of a kernel.

    Args:
        name: of the kernel.
        op: innermost op that launched it, if the trace has it; for a collective its own name.
        step: annotation around the launch, such as "Optimizer.step#AdamW.step", "nccl:all_to_all".
    """
    of_name = _first(name, "kernels")
    if of_name is not None and of_name.role is Role.COMMUNICATION:
        # NCCL runs an all-to-all as sends and receives.
        of_words = [_first(text, "ops") for text in (op, step) if text]
        named = [kind for kind in of_words if kind and kind.role is Role.COMMUNICATION]
        return named[0] if named and of_name in (TRANSFER, OTHER_COLLECTIVE) else of_name
    if of_name is not None and of_name.role is Role.COPY:
        return of_name
    if step.startswith(OPTIMIZER_STEP):
        return OPTIMIZER
    if of_name is None or _GENERIC.search(name):
        of_op = _first(op, "ops") if op else None
        if of_op is not None and of_op.role is Role.COMPUTE:
            return of_op
    return of_name or OTHER


@functools.lru_cache(maxsize=1 << 16)
def kind_of_op(name: str) -> KernelKind | None:
    """Return the kind of an op that runs on the host; None if its parts say more."""
    return _first(name, "ops")


def _first(name: str, patterns: str) -> KernelKind | None:
    for kind in KINDS:
        pattern = getattr(kind, patterns)
        if pattern is not None and pattern.search(name):
            return kind
    return None
