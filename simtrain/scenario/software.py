"""Software stacks and their releases: fused kernels, host time per kernel, defaults."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from pydantic import AfterValidator, Field, create_model, field_validator, model_validator

from simtrain.base.entry import Count, Entry, Strict, Text
from simtrain.base.quantities import Bytes, NonNegativeSeconds
from simtrain.base.resources import find_stack, line_of, list_stacks
from simtrain.base.strict_yaml import FieldError, Positions, YamlDocument, load_document, validate
from simtrain.base.strict_yaml.reading import Path, Place, dotted
from simtrain.base.values import MISSING, dataclass, fields
from simtrain.errors import InputError, did_you_mean
from simtrain.scenario.dispatchers import DEFAULT, ExpertDispatch
from simtrain.scenario.section import (
    CountOrZero,
    Fp8RecipeName,
    GradientType,
    Section,
    descriptions,
)
from simtrain.units import parse_bytes, parse_non_negative_seconds

# Releases of a software stack: entries that its file has from a release on, for some runs.
#
# A reference names a stack (`megatron_bridge`, which means its newest release) or one of its
# releases (`megatron_bridge@25.11`). The file of a stack lists sections of entries, oldest release
# first. As of a release, the entries of all sections up to it hold, later ones in place of earlier
# ones.

SEPARATOR = "@"
RELEASES = "releases"
"""Name of the list of sections in the file of a stack."""
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})*")


class Circumstances(NamedTuple):  # its hash and equality are those of tuples, which are fast
    """What of a run decides which entries of a release hold for it.

    Args:
        cluster: the name of its hardware profile.
        has_experts: whether its model has experts.
        in_pipeline: whether pipeline stages divide its model.
        recipe: how its products are cast to fp8 or fp4, or their type if they are not.
        has_adapters: whether it trains adapters alone.
        hidden_size: of its model.
        has_fsdp: whether data-parallel ranks divide its parameters (memory.zero_stage 3).
    """

    cluster: str
    has_experts: bool
    in_pipeline: bool
    recipe: str
    has_adapters: bool = False
    hidden_size: int = 0
    has_fsdp: bool = False


class When(Strict):
    """The runs for which a section holds: those that meet all conditions that it has."""

    clusters: list[Text] | None = None
    experts: bool | None = None
    pipeline: bool | None = None
    recipes: list[Text] | None = None
    adapters: bool | None = None
    fsdp: bool | None = None
    min_hidden_size: Count = 1
    max_hidden_size: Count = 1 << 30

    def holds_for(self, run: Circumstances) -> bool:
        return (
            (self.clusters is None or run.cluster in self.clusters)
            and self.experts in (None, run.has_experts)
            and self.pipeline in (None, run.in_pipeline)
            and (self.recipes is None or run.recipe in self.recipes)
            and self.adapters in (None, run.has_adapters)
            and self.fsdp in (None, run.has_fsdp)
            and self.min_hidden_size <= run.hidden_size <= self.max_hidden_size
        )


class _File(Strict):
    """The list of sections."""

    releases: list[dict[str, Any]]


class _Labels(Strict):
    """What a section has besides entries: its release, and the runs for which it holds."""

    release: Text
    when: When | None = None


def split_reference(reference: str) -> tuple[str, str]:
    """Return the stack that a reference names, and the release; "" is the newest."""
    name, _, release = reference.partition(SEPARATOR)
    return name, release


def known_releases(document: YamlDocument) -> tuple[str, ...]:
    """Return the releases that the file of a stack has sections for, oldest first.

    Raises:
        InputError: a section has no release, or an older one than the section before it.
    """
    return tuple(dict.fromkeys(labels.release for labels, _ in _sections(document)))


def latest_until(release: str, known: Sequence[str]) -> str | None:
    """Return the newest known release that is not newer than `release`.

    Return None if `release` is no number, or if it is older or newer than all known ones.
    """
    if not known or not _NUMBER.fullmatch(release) or _number(release) > _number(known[-1]):
        return None
    return next((each for each in reversed(known) if _number(each) <= _number(release)), None)


def as_of(document: YamlDocument, last: str | None, run: Circumstances | None) -> YamlDocument:
    """Return the file of a stack as of a release, for a run, without its sections of releases.

    Args:
        document: the file, with the entries of its base.
        last: a known release; None if the file has none.
        run: the run. For None, sections with conditions do not count.
    """
    places = dict(document.positions.places)
    data = {name: value for name, value in document.data.items() if name != RELEASES}
    for labels, entries in _sections(document):
        if last is None or _number(labels.release) > _number(last):
            break
        if labels.when and not (run and labels.when.holds_for(run)):
            continue
        # A whole entry replaces an older one: a value and its source stay together.
        data |= entries.data
        replaced = {(name,) for name in entries.data}
        places = {path: place for path, place in places.items() if path[:1] not in replaced}
        places |= entries.positions.places
    return YamlDocument(data, Positions(places))


def _sections(document: YamlDocument) -> Iterator[tuple[_Labels, YamlDocument]]:
    before: tuple[int, ...] = ()
    data = {RELEASES: document.data.get(RELEASES, [])}
    for index, content in enumerate(validate(_File, data, document.positions).releases):
        places = {
            path[2:]: place
            for path, place in document.positions.places.items()
            if path[:2] == (RELEASES, index)
        }
        place = places[()].value
        places[()] = Place(place, place)  # a missing release is missing in this section
        names = [name for name in _Labels.model_fields if name in content]
        labels = validate(
            _Labels,
            {name: content[name] for name in names},
            Positions(places),
            partial(_spell, index),
        )
        is_number = _NUMBER.fullmatch(labels.release)
        if not is_number or _number(labels.release) < before:
            message = f"releases: {labels.release} is no number, or older than the one before it"
            fix = 'write releases as numbers such as "26.02.01", the oldest first'
            raise InputError.of("E206", message, places["release",].value, fix)
        before = _number(labels.release)
        entries = {name: value for name, value in content.items() if name not in names}
        inside = {path: place for path, place in places.items() if path and path[0] in entries}
        yield labels, YamlDocument(entries, Positions(inside))


def _spell(index: int, path: Path) -> str:
    return dotted((RELEASES, index, *path))


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


DEFAULT_STACK = "megatron_2022"
"""The paper's stack."""

AttentionBackend = Literal["unfused", "fused"]
CrossEntropyFusion = Literal["native", "te"]
AttentionKernel = Literal["newest", "flash_attention_2"]
"""The kernel of fused attention: the hardware profile's, or FlashAttention-2."""
GraphModule = Literal["attn", "mlp", "moe_router", "moe_preprocess"]
"""A part of a layer that a CUDA graph can capture, by the name of Megatron-LM."""
Ring = Literal["transformer_engine", "torch", "torch_compiled"]
"""Whose ring attention of context-parallel ranks it is: torch's kernels may be compiled."""
Fp8Library = Literal["none", "transformer_engine", "torchao"]
Fp8Columns = Literal["cast", "recast"]
"""How weight gradients in fp8 get the copies by columns of their operands: cast together with the
copies by rows, or cast again from saved rows in the backward pass (DeepSeek-V3)."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which kernels of a layer are fused; the defaults are the paper's.

    Args:
        fused_softmax: mask and softmax of unfused attention are one kernel, which reads half of the
            scores.
        fused_rotary: the rotation of queries, or of keys, is one kernel. With latent attention it
            always is.
        fused_rms_norm: an RMS norm is one kernel. A layer norm is one kernel in every stack.
        fused_activation: bias, activation and gate of the MLP are one kernel.
        fused_dropout_add: bias, dropout and residual add are one kernel.
        fused_cross_entropy: the kernels of cross_entropy_fusion compute the loss.
        fused_gradient_accumulation: the product of a weight gradient adds to the gradient itself.
        attention_kernel: kernel of fused attention, newest (the hardware profile's) or
            flash_attention_2.
        attention_speed: speed of fused attention relative to that kernel.
        norm_in_linear: a norm with a single linear layer after it is part of that layer
            (Transformer Engine's LayerNormLinear). Its kernel stays the same; recompute drops
            different tensors.
        cross_entropy_fusion: kernels of a fused loss. native is Megatron-LM's own, which holds
            logits and exponentials in fp32: more memory than unfused. te is Transformer Engine's,
            which keeps logits in the compute dtype.
        separate_projections: queries, keys and values have a product each, and so have gate and
            values of a gated MLP. Their input is gathered once, by a collective of its own.
        partitions_recompute: a compiler decides what recompute by op keeps: saved outputs that
            nothing reads are freed. Otherwise they are cached until the backward pass.
        stops_recompute: full recompute of a layer ends with the last tensor that its backward pass
            reads, so that its last product does not run again.
        fp8_columns: how weight gradients in fp8 get copies by columns. cast writes them together
            with copies by rows (Transformer Engine). recast saves only rows, and casts them again
            by columns in the backward pass; weights keep one fp8 copy, which is transposed there
            (DeepSeek-V3).
        grouped_products: one kernel has the products of all experts of a layer (torch._grouped_mm),
            and one casts their operands. Otherwise the host launches a product, and in fp8 a cast,
            for each expert (Transformer Engine).
        fused_grouped_mlp: products of experts in mxfp8 run the activation and the casts between
            them in their epilogues (Transformer Engine's operation fuser with
            NVTE_CUTEDSL_FUSED_GROUPED_MLP).
        paged_stash: kernels copy what fused experts save into pages, and back before the backward
            pass: the number of tokens of an expert needs no host (--moe-paged-stash).
        checkpointed_fp32_norms: norms read an fp32 copy of their input, which a kernel of its own
            makes, and run again in the backward pass (InternEvo's dropout_selective_checkpoint).
        separate_masking: unfused attention copies queries, keys and values by head, and divides,
            masks and lowers the scores with a kernel each (Megatron-LM of 2019).
        complex_rotary: the kernels of a rotation that is not fused multiply complex numbers in
            fp32 (torchtitan's Llama). Otherwise they multiply halves by cosines and sines.
        repeated_keys: kernels repeat grouped keys and values for each query head before fused
            attention, which then saves the repeated ones (torchtitan's repeat_kv).
        biases_in_products: products of linear layers add biases in their epilogues (torch's addmm).
            Otherwise a kernel of its own does, unless it is fused with the activation or residual.
        log_softmax_loss: the unfused loss is torch's `F.cross_entropy`, or that of DTensor if ranks
            divide the vocabulary. Otherwise it has Megatron-LM's kernels.
        loss_chunks: parts of a microbatch's tokens that have the output layer, the loss and their
            backward passes one after another, so that logits are those of a part (torchtitan).
        ring: whose kernels and exchanges ring attention between context-parallel ranks has.
        narrow_loss: torch's loss stays in the compute type: nothing converts logits (fms-fsdp).
    """

    fused_softmax: bool = True
    fused_rotary: bool = True
    fused_rms_norm: bool = True
    fused_activation: bool = True
    fused_dropout_add: bool = True
    fused_cross_entropy: bool = False
    fused_gradient_accumulation: bool = True
    attention_kernel: AttentionKernel = "newest"
    attention_speed: Annotated[float, Field(ge=0.01, le=4)] = 1.0
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
    narrow_loss: bool = False
    loss_chunks: Count = 1
    ring: Ring = "transformer_engine"


PAPER_KERNELS = Kernels()
_Recipes = Annotated[tuple[Fp8RecipeName, ...], Field(strict=False)]


@dataclass(frozen=True, slots=True)
class StackFacts:
    """The facts of a stack with a scenario's overrides applied.

    Those with defaults may be left out in the file of a stack.

    Args:
        kernels: which kernels are fused.
        fused_optimizer: Adam makes one pass over its states, unlike PyTorch's foreach kernels.
        attention_backend, in_place_cross_entropy, overlap_tensor_parallel: defaults of
            attention_backend, memory.in_place_cross_entropy and overlap.tensor_parallel.
        overlap_pipeline, align_gradient_reduction, align_parameter_gather: defaults of
            overlap.pipeline, overlap.align_gradient_reduction and overlap.align_parameter_gather,
            for the layouts that can have them.
        cuda_graphs: passes are captured once and launched whole, so that kernels do not wait for
            the host.
        fp8_library: the library whose fp8 products and casts are simulated; none if the stack has
            no fp8.
        narrow_optimizer_states: Adam can hold its states in fewer than 32 bits.
        recompute_in_cuda_graphs: captured passes may recompute.
        checkpoints_ops: recompute can save the outputs of single ops (PyTorch's selective
            activation checkpointing).
        hybrid_models: it has layers of Mamba-2, of attention and of an MLP alone, in any order.
        fully_shard: memory.zero_stage 3 is PyTorch's fully_shard. Shards are the fp32 master
            weights, kernels copy into and out of the collectives' buffers, and in a pipeline
            gradients are reduced after the last backward pass.
        copies_sequences: gathers and reduce-scatters of sequences copy all tokens of several
            sequences, since NCCL joins parts along the first dimension alone (DTensor).
        list_collectives: stage 3 gathers and reduces each tensor by itself, with torch's
            collectives on lists, whose slices the host copies one by one (DeepSpeed of 2021).
        torch_workspaces: number of workspaces that PyTorch keeps for cuBLAS during the whole run.
        linear_workspaces: number of workspaces that Transformer Engine keeps for products of linear
            layers. The hardware profile has their size. Userbuffers need three times as many.
        expert_workspaces: number of workspaces that it keeps in addition for grouped products of
            experts.
        cublas_workspace: size of each of PyTorch's workspaces, which CUBLAS_WORKSPACE_CONFIG sets;
            32 MiB for ":4096:8". By default PyTorch's choice for the GPU, which the hardware
            profile has.
        overlap_data_parallel, overlap_parameter_gather: defaults of overlap.data_parallel and
            overlap.parameter_gather, for the layouts that can have them.
        gradients: default of precision.gradients with weights of this type.
        expert_dispatch: default of parallelism.expert_dispatch.
        merged_passes, delayed_weight_gradients: defaults of overlap.merged_passes and
            overlap.delayed_weight_gradients, for the layouts that can have them.
        frozen_fp8_recipes: recipes with which precision.fp8_parameters is true by default if
            weights are frozen (model.lora).
        trained_fp8_recipes: recipes with which precision.fp8_parameters is true by default if
            weights are trained, for layouts that can have it.
        host_issue: host time to issue a kernel, such as 25 us; by default the hardware profile's.
        host_call: host time of a call of the framework (a module's forward pass, a node of
            autograd) in addition to that of its kernels, such as 100 us; on the host of an H100
            (host.speed 1).
        optimizer_threads: threads of each rank that run Adam on the host
            (memory.offload_optimizer); 0 for all cores of the host.
        blocking_launches: the host waits for each kernel and each collective of a pass that it
            launches (CUDA_LAUNCH_BLOCKING=1), so that none overlaps another.
        cuda_graph_modules: parts of each layer that CUDA graphs capture (Megatron-LM's
            --cuda-graph-modules); all kernels of such a part take the host one call.
    """

    kernels: Kernels
    fused_optimizer: bool
    attention_backend: AttentionBackend
    in_place_cross_entropy: bool
    overlap_tensor_parallel: bool
    overlap_pipeline: bool
    align_gradient_reduction: bool
    align_parameter_gather: bool
    cuda_graphs: bool
    fp8_library: Fp8Library
    narrow_optimizer_states: bool
    recompute_in_cuda_graphs: bool
    checkpoints_ops: bool
    hybrid_models: bool
    fully_shard: bool
    torch_workspaces: CountOrZero
    linear_workspaces: CountOrZero
    expert_workspaces: CountOrZero
    cublas_workspace: Bytes | None = None
    copies_sequences: bool = False
    list_collectives: bool = False
    overlap_data_parallel: bool = False
    overlap_parameter_gather: bool = False
    gradients: GradientType = "fp32"
    expert_dispatch: ExpertDispatch = DEFAULT.name
    merged_passes: bool = False
    delayed_weight_gradients: bool = False
    frozen_fp8_recipes: _Recipes = ()
    trained_fp8_recipes: _Recipes = ()
    host_issue: NonNegativeSeconds | None = None
    host_call: NonNegativeSeconds = 0.0
    optimizer_threads: CountOrZero = 0
    blocking_launches: bool = False
    cuda_graph_modules: Annotated[tuple[GraphModule, ...], Field(strict=False)] = ()


def _entries() -> dict[str, tuple[Any, Any]]:
    """Return the type of each entry of a stack, and its default, which is MISSING for some."""
    entries = {}
    for home in (Kernels, StackFacts):
        types = get_type_hints(home, include_extras=True)
        for each in fields(home):
            inner = [kind for kind in get_args(types[each.name]) if kind is not type(None)]
            is_optional = type(None) in get_args(types[each.name])
            entries[each.name] = inner[0] if is_optional else types[each.name], each.default
    del entries["kernels"]
    return entries


_ENTRIES = _entries()
DEFAULT_FACTS = {name: default for name, (_, default) in _ENTRIES.items() if default is not MISSING}
"""Entries that a stack leaves out if they are those of Megatron-LM without arguments."""
_LABELS = "version", "name", "description", "base", "frameworks", RELEASES
"""What a stack does not take from its base."""
_WORD = re.compile(r"[a-z0-9_-]+")


class _StackFile(Strict):
    """A file of `software_stacks/`: facts about one framework, each with its source.

    Args:
        base: the stack whose entries this one takes, except those that its file has.
        frameworks: what tables of measured runs call the software; words that a row must have.
    """

    version: Literal[1]
    name: Text
    description: Text
    base: Text | None = None
    frameworks: list[Text] = Field(default_factory=list)

    def entry(self, name: str) -> Entry[Any] | None:
        """Return an entry of `Kernels` or `StackFacts`; None if the file does not have it."""
        entry: Entry[Any] | None = getattr(self, name)
        return entry

    @property
    def facts(self) -> dict[str, Any]:
        """The value of each entry; its default if the file does not have it."""
        entries = {name: self.entry(name) for name in _ENTRIES}
        return {
            name: DEFAULT_FACTS[name] if entry is None else entry.value
            for name, entry in entries.items()
        }


if TYPE_CHECKING:
    Stack = _StackFile
else:
    Stack = create_model(
        "Stack",
        __base__=_StackFile,
        __module__=__name__,
        **{
            name: (Entry[kind], ...) if default is MISSING else (Entry[kind] | None, None)
            for name, (kind, default) in _ENTRIES.items()
        },
    )


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


@functools.lru_cache(maxsize=1024)
def family_of(reference: str) -> str:
    """Return the stack that a stack is a variation of, or the stack itself, without its release."""
    name, _ = split_reference(reference)
    return line_of(find_stack(name), "base") or name if name in list_stacks() else reference


def stack_of_framework(words: str) -> str | None:
    """Return the stack that a text such as "MLPerf v5.0" names, with the release; None if none.

    Of several that it names, the one with the most words counts.
    """
    spoken = set(_WORD.findall(words.lower()))
    named = {
        framework: name
        for name in list_stacks()
        for framework in load_stack(name).frameworks
        if spoken.issuperset(framework.split())
    }
    if not named:
        return None
    stack = named[max(named, key=lambda framework: len(framework.split()))]
    written = (number for number in _NUMBER.findall(words) if "." in number)
    known = releases_of(stack)
    return SEPARATOR.join([stack, *(each for each in written if latest_until(each, known))][:2])


# The section `software` of a scenario: the software stack and its kernels.

_TEXTS: dict[Any, Callable[[str], float]] = {
    Bytes: parse_bytes,
    NonNegativeSeconds: parse_non_negative_seconds,
}
"""Types of entries that scenarios keep as texts with units."""
_OVERRIDABLE = {
    "fused_softmax": "false",
    "fused_rotary": "false",
    "fused_rms_norm": "false",
    "fused_activation": "false",
    "fused_dropout_add": "false",
    "fused_cross_entropy": "true",
    "cross_entropy_fusion": "te",
    "fused_gradient_accumulation": "false",
    "norm_in_linear": "true",
    "fused_optimizer": "false",
    "cuda_graphs": "true",
    "cuda_graph_modules": "[attn, moe_router]",
    "fully_shard": "true",
    "attention_kernel": "flash_attention_2",
    "attention_speed": 0.6,
    "fp8_columns": "recast",
    "grouped_products": "true",
    "fused_grouped_mlp": "true",
    "paged_stash": "true",
    "checkpointed_fp32_norms": "true",
    "separate_masking": "true",
    "complex_rotary": "true",
    "repeated_keys": "true",
    "loss_chunks": 8,
    "torch_workspaces": "0",
    "linear_workspaces": "0",
    "expert_workspaces": "0",
    "cublas_workspace": "32 MiB",
    "host_issue": "25 us",
    "host_call": "100 us",
    "optimizer_threads": "1",
    "blocking_launches": "true",
}
"""Entries that a scenario may override, each with an example."""


class _Software(Section):
    """The software stack, and the entries of it that this scenario overrides.

    `software: deepspeed_2022` is short for `software: {stack: deepspeed_2022}`. All entries except
    `stack` default to null, which takes the value of the stack. `simtrain show model` lists
    the stacks that come with simtrain.

    stack: name of a software stack that comes with simtrain; megatron_2022 by default. Its newest
        release, or the one after an @: megatron_bridge@25.11.
    """

    stack: str = Field(default=DEFAULT_STACK, examples=["deepspeed_2022"])

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, written: Any) -> Any:
        return written if isinstance(written, (dict, cls)) else {"stack": written}

    @field_validator("stack")
    @classmethod
    def _known(cls, name: str) -> str:
        if refused := refusal(name):
            raise FieldError((), *refused)
        return name

    def overrides(self, entry: str) -> bool:
        return getattr(self, entry) is not None

    @property
    def overridden(self) -> dict[str, Any]:
        """The entries that this scenario overrides, in base units."""
        written = {name: value for name, value in vars(self).items() if value is not None}
        del written["stack"]
        for name in written:
            if parse := _TEXTS.get(_ENTRIES[name][0]):
                written[name] = parse(written[name])
        return written

    @property
    def name(self) -> str:
        return split_reference(self.stack)[0]

    def facts_for(self, run: Circumstances | None) -> StackFacts:
        return _facts_of(self, run)


def _overridable_fields() -> Iterator[tuple[str, Any]]:
    for name, shown in _OVERRIDABLE.items():
        kind = _ENTRIES[name][0]
        if parse := _TEXTS.get(kind):
            kind = Annotated[str, AfterValidator(partial(_checked, parse))]
        yield name, (kind | None, Field(default=None, examples=[shown]))


def _checked(parse: Callable[[str], float], text: str) -> str:
    parse(text)
    return text


def _documentation() -> str:
    """Return the docstring of the section: each field's text is that of its entry."""
    texts = descriptions(Kernels) | descriptions(StackFacts)
    lines = "".join(f"{name}: {texts[name]}\n" for name in _OVERRIDABLE)
    return f"{inspect.getdoc(_Software)}\n{lines}"


if TYPE_CHECKING:
    Software = _Software
else:
    Software = create_model(
        "Software",
        __base__=_Software,
        __module__=__name__,
        __doc__=_documentation(),
        **dict(_overridable_fields()),
    )


@functools.lru_cache(maxsize=1024)
def _facts_of(software: Software, run: Circumstances | None) -> StackFacts:
    facts, overrides = load_stack(software.stack, run).facts, software.overridden
    # A scenario that sets either entry of graphs takes neither from the stack.
    if {"cuda_graphs", "cuda_graph_modules"} & overrides.keys():
        facts |= {"cuda_graphs": False, "cuda_graph_modules": ()}
    facts |= overrides
    of_kernels = {field.name: facts.pop(field.name) for field in fields(Kernels)}
    return StackFacts(Kernels(**of_kernels), **facts)
