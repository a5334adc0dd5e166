"""Software stacks: which kernels a framework fuses, and the host time per kernel."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from simtrain.base.entry import CountOrZero, Entry, Positive, Strict, Text
from simtrain.base.resources import find_stack, list_stacks
from simtrain.base.strict_yaml import Positions, YamlDocument, load_document, validate
from simtrain.errors import InputError, did_you_mean
from simtrain.scenario.dispatchers import DEFAULT, ExpertDispatch
from simtrain.scenario.precision import Fp8RecipeName, GradientType
from simtrain.scenario.releases import (
    RELEASES,
    Circumstances,
    as_of,
    known_releases,
    latest_until,
    split_reference,
)
from simtrain.units import Bytes, NonNegativeSeconds

DEFAULT_STACK = "megatron_2022"
"""The paper's stack."""

AttentionBackend = Literal["unfused", "fused"]
CrossEntropyFusion = Literal["native", "te"]
AttentionKernel = Literal["newest", "flash_attention_2"]
"""The kernel of fused attention: the hardware profile's, or FlashAttention-2."""
GraphModule = Literal["attn", "mlp", "moe_router", "moe_preprocess"]
"""A part of a layer that a CUDA graph can capture, by the name of Megatron-LM."""
Fp8Library = Literal["none", "transformer_engine", "torchao"]
Fp8Columns = Literal["cast", "recast"]
"""How weight gradients in fp8 get the copies by columns of their operands: cast together with the
copies by rows, or cast again from saved rows in the backward pass (DeepSeek-V3)."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which kernels of a layer are fused; the defaults are the paper's.

    Args:
        fused_softmax: mask and softmax of unfused attention; fused, it reads half of the scores.
        fused_rotary: rotary embedding of queries or keys.
        fused_rms_norm: RMS norm. A layer norm is one kernel in every stack.
        fused_activation: the MLP's bias, activation and gate.
        fused_dropout_add: bias, dropout and residual.
        fused_cross_entropy: the loss, by the kernels of `cross_entropy_fusion`.
        fused_gradient_accumulation: the weight-gradient product adds to the gradient itself.
        attention_kernel: the kernel of fused attention. The hardware profile has the newest one,
            and how fast FlashAttention-2 is beside it.
        attention_speed: speed of fused attention relative to that kernel.
        norm_in_linear: a norm is part of the linear layer after it, if there is only one. Its
            kernel stays the same; recompute drops different tensors.
        separate_projections: queries, keys and values have a product each, and so have gate and
            values of a gated MLP. Their input is gathered once, by a collective of its own.
        partitions_recompute: a compiler decides what recompute by op keeps: saved outputs that
            nothing reads are freed. Otherwise they are cached until the backward pass.
        stops_recompute: full recompute of a layer ends with the last tensor that its backward pass
            reads, so that its last product does not run again.
        fp8_columns: how weight gradients in fp8 get copies by columns.
        grouped_products: one kernel has the products of all experts (torch._grouped_mm), and one
            casts their operands. Otherwise the host launches a kernel for each expert.
        fused_grouped_mlp: epilogues of the products of experts in mxfp8 run the activation and the
            casts between them (Transformer Engine's fused operations, in CuTe DSL).
        paged_stash: kernels copy what fused experts save into pages, and back: the number of tokens
            of an expert needs no host (Megatron-LM's --moe-paged-stash).
        checkpointed_fp32_norms: norms read an fp32 copy of their input, which a kernel of its own
            makes, and run again in the backward pass (InternEvo).
        separate_masking: unfused attention copies queries, keys and values by head, and divides,
            masks and lowers the scores with a kernel each (Megatron-LM of 2019).
        complex_rotary: an unfused rotation multiplies complex numbers in fp32 (torchtitan's Llama),
            in place of cosines and sines of halves in the compute type.
        repeated_keys: kernels repeat grouped keys and values for each query head before attention.
        biases_in_products: products of linear layers add biases in their epilogues (torch's addmm).
            Otherwise a kernel of its own does, unless it is fused with the activation or residual.
        log_softmax_loss: the unfused loss is torch's `F.cross_entropy`, unless ranks divide the
            vocabulary. Otherwise it has Megatron-LM's kernels.
        cross_entropy_fusion: kernels of a fused loss. Megatron-LM's own (native) hold logits and
            exponentials in fp32; Transformer Engine's (te) hold logits in the compute type.
    """

    fused_softmax: bool = True
    fused_rotary: bool = True
    fused_rms_norm: bool = True
    fused_activation: bool = True
    fused_dropout_add: bool = True
    fused_cross_entropy: bool = False
    fused_gradient_accumulation: bool = True
    attention_kernel: AttentionKernel = "newest"
    attention_speed: float = 1.0
    norm_in_linear: bool = False
    cross_entropy_fusion: CrossEntropyFusion = "native"
    separate_projections: bool = False
    partitions_recompute: bool = False
    stops_recompute: bool = False
    fp8_columns: Fp8Columns = "cast"
    grouped_products: bool = False
    fused_grouped_mlp: bool = False
    paged_stash: bool = False
    checkpointed_fp32_norms: bool = False
    separate_masking: bool = False
    complex_rotary: bool = False
    repeated_keys: bool = False
    biases_in_products: bool = False
    log_softmax_loss: bool = False


PAPER_KERNELS = Kernels()
_LABELS = "version", "name", "description", "base", "frameworks", RELEASES
"""What a stack does not take from its base."""
DEFAULT_FACTS = {
    "overlap_data_parallel": False,
    "overlap_parameter_gather": False,
    "gradients": "fp32",
    "expert_dispatch": DEFAULT.name,
    "merged_passes": False,
    "delayed_weight_gradients": False,
    "grouped_products": False,
    "fused_grouped_mlp": False,
    "paged_stash": False,
    "checkpointed_fp32_norms": False,
    "separate_masking": False,
    "complex_rotary": False,
    "repeated_keys": False,
    "biases_in_products": False,
    "log_softmax_loss": False,
    "stops_recompute": False,
    "frozen_fp8_recipes": (),
    "trained_fp8_recipes": (),
    "host_call": 0.0,
    "blocking_launches": False,
    "cuda_graph_modules": (),
}
"""Entries that a stack leaves out if they are those of Megatron-LM without arguments."""
_WORD = re.compile(r"[a-z0-9_-]+")


class Stack(Strict):
    """A file of `software_stacks/`: facts about one framework, each with its source.

    Args:
        base: the stack whose entries this one takes, except those that its file has.
        fused_optimizer: Adam makes one pass over its states, unlike PyTorch's foreach kernels.
        attention_backend, in_place_cross_entropy, overlap_tensor_parallel: defaults of
            attention_backend, memory.in_place_cross_entropy and overlap.tensor_parallel.
        overlap_pipeline, align_gradient_reduction, align_parameter_gather: defaults of
            overlap.pipeline, overlap.align_gradient_reduction and overlap.align_parameter_gather,
            for the layouts that can have them.
        overlap_data_parallel, overlap_parameter_gather: defaults of overlap.data_parallel and
            overlap.parameter_gather, for the layouts that can have them; by default false.
        gradients: default of precision.gradients with weights in bf16; by default fp32.
        expert_dispatch: default of parallelism.expert_dispatch; by default all_to_all.
        merged_passes, delayed_weight_gradients: defaults of overlap.merged_passes and
            overlap.delayed_weight_gradients, for the layouts that can have them; by default false.
        frozen_fp8_recipes: recipes with which precision.fp8_parameters is true by default if
            weights are frozen (model.lora); by default none.
        trained_fp8_recipes: recipes with which precision.fp8_parameters is true by default if
            weights are trained, for layouts that can have it; by default none.
        cuda_graphs: each pass is captured once and launched as a graph, so no kernel waits for the
            host.
        cuda_graph_modules: parts of each layer that graphs capture; by default none.
        fp8_library: the library whose fp8 products and casts are simulated; none if the stack has
            no fp8.
        narrow_optimizer_states: Adam can hold its states in fewer than 32 bits.
        recompute_in_cuda_graphs: captured passes may recompute.
        checkpoints_ops: recompute can save the outputs of single ops (PyTorch's selective
            activation checkpointing).
        hybrid_models: it has layers of Mamba-2, of attention and of an MLP alone, in any order.
        fully_shard: ZeRO stage 3 is PyTorch's fully_shard. Shards are the fp32 master weights,
            kernels copy into and out of the collectives' buffers, and in a pipeline gradients are
            reduced after the last backward pass.
        torch_workspaces: workspaces that PyTorch keeps for cuBLAS, of the size `cublas_workspace`.
        linear_workspaces: workspaces that Transformer Engine keeps for products of linear layers.
        expert_workspaces: workspaces that it keeps in addition for grouped products of experts.
        cublas_workspace: `CUBLAS_WORKSPACE_CONFIG`; by default PyTorch's choice for the GPU.
        host_issue: host time per kernel; by default the hardware profile's.
        host_call: host time of a call of the framework (a module's forward pass, a node of
            autograd) in addition to that of its kernels, on a host of speed 1; by default 0.
        blocking_launches: the host waits for each kernel that it launches; by default false.
        frameworks: what tables of measured runs call the software; words that a row must have.
        attention_kernel: by default the newest.
        attention_speed: by default 1.
        fp8_columns: by default cast.
        grouped_products, fused_grouped_mlp, paged_stash, checkpointed_fp32_norms,
            separate_masking, complex_rotary, repeated_keys, biases_in_products,
            log_softmax_loss: by default false.

    The other fields are described in `Kernels`.
    """

    version: Literal[1]
    name: Text
    description: Text
    base: Text | None = None
    frameworks: list[Text] = Field(default_factory=list)
    fused_softmax: Entry[bool]
    fused_rotary: Entry[bool]
    fused_rms_norm: Entry[bool]
    fused_activation: Entry[bool]
    fused_dropout_add: Entry[bool]
    fused_cross_entropy: Entry[bool]
    cross_entropy_fusion: Entry[CrossEntropyFusion]
    fused_gradient_accumulation: Entry[bool]
    norm_in_linear: Entry[bool]
    separate_projections: Entry[bool]
    partitions_recompute: Entry[bool]
    fused_optimizer: Entry[bool]
    attention_backend: Entry[AttentionBackend]
    in_place_cross_entropy: Entry[bool]
    overlap_tensor_parallel: Entry[bool]
    overlap_pipeline: Entry[bool]
    align_gradient_reduction: Entry[bool]
    align_parameter_gather: Entry[bool]
    cuda_graphs: Entry[bool]
    fp8_library: Entry[Fp8Library]
    narrow_optimizer_states: Entry[bool]
    recompute_in_cuda_graphs: Entry[bool]
    checkpoints_ops: Entry[bool]
    hybrid_models: Entry[bool]
    fully_shard: Entry[bool]
    torch_workspaces: Entry[CountOrZero]
    linear_workspaces: Entry[CountOrZero]
    expert_workspaces: Entry[CountOrZero]
    cublas_workspace: Entry[Bytes] | None = None
    attention_kernel: Entry[AttentionKernel] | None = None
    attention_speed: Entry[Positive] | None = None
    fp8_columns: Entry[Fp8Columns] | None = None
    grouped_products: Entry[bool] | None = None
    fused_grouped_mlp: Entry[bool] | None = None
    paged_stash: Entry[bool] | None = None
    checkpointed_fp32_norms: Entry[bool] | None = None
    separate_masking: Entry[bool] | None = None
    complex_rotary: Entry[bool] | None = None
    repeated_keys: Entry[bool] | None = None
    biases_in_products: Entry[bool] | None = None
    log_softmax_loss: Entry[bool] | None = None
    stops_recompute: Entry[bool] | None = None
    overlap_data_parallel: Entry[bool] | None = None
    overlap_parameter_gather: Entry[bool] | None = None
    gradients: Entry[GradientType] | None = None
    expert_dispatch: Entry[ExpertDispatch] | None = None
    merged_passes: Entry[bool] | None = None
    delayed_weight_gradients: Entry[bool] | None = None
    frozen_fp8_recipes: Entry[Annotated[tuple[Fp8RecipeName, ...], Field(strict=False)]] | None = (
        None
    )
    trained_fp8_recipes: Entry[Annotated[tuple[Fp8RecipeName, ...], Field(strict=False)]] | None = (
        None
    )
    host_issue: Entry[NonNegativeSeconds] | None = None
    host_call: Entry[NonNegativeSeconds] | None = None
    blocking_launches: Entry[bool] | None = None
    cuda_graph_modules: Entry[list[GraphModule]] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The value of each entry; the default, which may be None, if the file does not have it."""
        entries = {
            name: getattr(self, name) for name in type(self).model_fields if name not in _LABELS
        }
        return {
            name: DEFAULT_FACTS.get(name) if entry is None else entry.value
            for name, entry in entries.items()
        }


@dataclass(frozen=True, slots=True)
class StackFacts:
    """The facts of a stack with a scenario's overrides applied; see `Stack`."""

    kernels: Kernels
    fused_optimizer: bool
    attention_backend: AttentionBackend
    in_place_cross_entropy: bool
    overlap_tensor_parallel: bool
    overlap_pipeline: bool
    align_gradient_reduction: bool
    align_parameter_gather: bool
    overlap_data_parallel: bool
    overlap_parameter_gather: bool
    gradients: GradientType
    expert_dispatch: str
    merged_passes: bool
    delayed_weight_gradients: bool
    frozen_fp8_recipes: tuple[Fp8RecipeName, ...]
    trained_fp8_recipes: tuple[Fp8RecipeName, ...]
    cuda_graphs: bool
    fp8_library: Fp8Library
    narrow_optimizer_states: bool
    recompute_in_cuda_graphs: bool
    checkpoints_ops: bool
    hybrid_models: bool
    fully_shard: bool
    torch_workspaces: int
    linear_workspaces: int
    expert_workspaces: int
    cublas_workspace: int | None
    host_issue: float | None
    host_call: float
    blocking_launches: bool
    cuda_graph_modules: Sequence[GraphModule]


@functools.cache
def load_stack(reference: str, run: Circumstances | None = None) -> Stack:
    """Load a shipped stack, as of its newest release or of the one that the reference names.

    Args:
        reference: a name, or NAME@RELEASE.
        run: the run that decides which entries of releases hold; None for those of all runs.

    Raises:
        InputError: no stack has this name, it has no such release, or its base is a variation
            itself.
    """
    name, release = split_reference(reference)
    document = _with_base(load_document(find_stack(name)))
    known = known_releases(document)
    last = latest_until(release, known) if release else next(reversed(known), None)
    if release and last is None:
        message, fix = _no_release(name, release, known)
        raise InputError.of("E101", message, fix=fix)
    document = as_of(document, last, run)
    return validate(Stack, document.data, document.positions)


@functools.cache
def releases_of(name: str) -> tuple[str, ...]:
    """Return the releases of a shipped stack that differ from each other, oldest first."""
    return known_releases(load_document(find_stack(name)))


def refusal(reference: str) -> tuple[str, str] | None:
    """Return why no shipped stack has this name and release, and a remedy; None if one has."""
    name, release = split_reference(reference)
    if name not in (names := list_stacks()):
        fix = f"{did_you_mean(name, names)}Known names: {', '.join(names)}"
        return f'there is no software stack named "{name}"', fix
    if reference == name or latest_until(release, known := releases_of(name)) is not None:
        return None
    return _no_release(name, release, known)


def _no_release(name: str, release: str, known: Sequence[str]) -> tuple[str, str]:
    if not known:
        return f'{name} has no releases, but "{release}" is written', f"write {name}"
    return f'{name} has no release "{release}"', (
        f"write {name} for the newest, or one of {', '.join(known)}. A release between two of "
        "them has the facts of the older one"
    )


def _with_base(document: YamlDocument) -> YamlDocument:
    """Add the entries of the base that the file of a stack leaves out."""
    name = document.data.get("base")
    if not isinstance(name, str):
        return document  # a whole stack, or an error of validation
    base = load_document(find_stack(name))
    if "base" in base.data:
        message = f"base is {name}, which has a base itself"
        fix = f"write base: {base.data['base']}, and the entries that differ from it"
        raise InputError.of("E206", message, document.positions.of_value(("base",)), fix)
    entries = {entry: value for entry, value in base.data.items() if entry not in _LABELS}
    # A whole entry replaces that of the base: a value and its source stay together.
    taken = {
        path: place
        for path, place in base.positions.places.items()
        if path and path[0] in entries and path[0] not in document.data
    }
    return YamlDocument(entries | document.data, Positions(taken | {**document.positions.places}))


def stacks_with(entry: str, *values: object) -> list[str]:
    """Return the stacks whose entry has one of some values.

    Variations of another stack come after whole stacks, and those that assume the value are last.
    """
    stacks = {name: load_stack(name) for name in list_stacks()}
    names = [name for name, stack in stacks.items() if getattr(stack, entry).value in values]
    return sorted(
        names,
        key=lambda name: (
            "assumed" in getattr(stacks[name], entry).source,
            stacks[name].base is not None,
        ),
    )


@functools.lru_cache(maxsize=1024)
def family_of(reference: str) -> str:
    """Return the stack that a stack is a variation of, or the stack itself, without its release."""
    name, _ = split_reference(reference)
    return (load_stack(name).base or name) if name in list_stacks() else reference


def stack_of_framework(words: str) -> str | None:
    """Return the stack of the framework that a text names, such as "torchtitan, eager".

    Of several that it names, the one with the most words counts; None if it names none.
    """
    spoken = set(_WORD.findall(words.lower()))
    named = {
        framework: name
        for name in list_stacks()
        for framework in load_stack(name).frameworks
        if spoken.issuperset(framework.split())
    }
    return named[max(named, key=lambda framework: len(framework.split()))] if named else None


def facts_of(
    reference: str, overrides: Mapping[str, Any], run: Circumstances | None = None
) -> StackFacts:
    """Load the facts of a stack and apply overrides.

    Raises:
        InputError: as `load_stack`.
    """
    facts = load_stack(reference, run).facts
    # A scenario that sets either entry of graphs takes neither from the stack.
    if {"cuda_graphs", "cuda_graph_modules"} & overrides.keys():
        facts |= {"cuda_graphs": False, "cuda_graph_modules": ()}
    facts |= overrides
    of_kernels = {field.name: facts.pop(field.name) for field in fields(Kernels)}
    kernels = Kernels(**{name: value for name, value in of_kernels.items() if value is not None})
    return StackFacts(kernels, **facts)
