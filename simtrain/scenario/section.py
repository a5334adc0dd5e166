"""The base class of a scenario's sections, positions of its values, and the small sections."""

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from simtrain.base.strict_yaml import (
    FieldError,
    Path,
    Positions,
    YamlDocument,
    data_of,
    input_error,
    leaves,
)
from simtrain.base.values import dataclass, field
from simtrain.errors import InputError, Location
from simtrain.scenario.other_names import other_names

# Descriptions of the fields of a scenario, parsed from the docstrings of its sections.

# "name: text" or "name, name: text" at the start of a line; continuation lines are indented.
_ENTRY = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): (.*(?:\n +.*)*)", re.MULTILINE)


def summary(section: type[BaseModel]) -> str:
    """Return the first line of a section's docstring."""
    return inspect.getdoc(section).partition("\n")[0]  # type: ignore[union-attr]


def descriptions(section: type) -> dict[str, str]:
    """Return the description of each field in a class's docstring, by field name."""
    doc = inspect.getdoc(section) or ""
    head, _, arguments = doc.partition("\nArgs:\n")
    arguments, _, _ = arguments.partition("\n\n")
    doc = f"{head}\n{textwrap.dedent(arguments)}"
    return {
        name: " ".join(text.split())
        for names, text in _ENTRY.findall(doc)
        for name in names.split(", ")
    }


def name_in_files(section: type[BaseModel], name: str) -> str:
    """Return the name of a field in scenario files, such as `global` for `global_`."""
    return str(section.model_fields[name].validation_alias or name)


def section_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the section class of a field, or None if the field is a plain value."""
    annotation = section.model_fields[name].annotation
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def capitalized(text: str) -> str:
    """Return a text with an upper-case first letter."""
    return text[:1].upper() + text[1:]


IN_PYTHON = Location("changed in Python")
"""The position of values that Python code changed."""


# NCCL and MPI count ranks and CUDA counts grid blocks in 32-bit integers.
MAX_COUNT = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
MAX_DEGREE = 2**20
"""Ranks along an axis of parallelism: more than any cluster has, few enough to lay out at once."""
Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]


if TYPE_CHECKING:
    derived = cached_property
else:

    class derived:
        """A property of a scenario that is computed once for each object, as its fields stay.

        Values are kept apart from the fields: copies, pickles and comparisons leave them out.
        """

        def __init__(self, compute):
            self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

        def __get__(self, scenario, kind=None):
            if scenario is None:
                return self
            try:
                values = scenario._derived
            except AttributeError:  # this is the first of them
                values = {}
                object.__setattr__(scenario, "_derived", values)
            if self.name not in values:
                values[self.name] = self.compute(scenario)
            return values[self.name]


class Section(BaseModel):
    """A section: refuses unknown fields, values of another type, and infinite or NaN values."""

    # Files name fields by their aliases (`global`), Python code by either name. Files need only the
    # validator of the whole scenario; pydantic builds the validators of sections on demand.
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_by_name=True,
        defer_build=True,
        ignored_types=(derived,),
    )

    def __init__(self, /, **values: Any) -> None:
        """Set the fields.

        Raises:
            InputError: one problem per wrong name or value.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = type(self).__name__
            positions = Positions().moved([()], Location(f"{name}(...)"))
            raise input_error(error, type(self), values, positions, name) from None

    # This is the mark of pydantic's own __init__. Without it, pydantic would call this __init__ for
    # the sections of a file too, and would report only the first of their errors.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def other_names(cls) -> Mapping[str, str]:
        return other_names(cls.__name__)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to assign to a field.

        Raises:
            InputError: says how to make a changed copy (E120).
        """
        field = type(self).model_fields.get(name)
        if field is None:
            super().__setattr__(name, value)
            return
        kind, key = type(self).__name__, field.serialization_alias or name
        path = key if kind == "Scenario" else f"SECTION.{key}"
        message = f"{kind}.{name} cannot be assigned, because scenarios do not change"
        fix = f'make a changed copy: changed = scenario.replace({{"{path}": {value!r:.80}}})'
        raise InputError.of("E120", message, fix=fix)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a scenario's values.

    Args:
        positions: positions of the fields in the file and the overrides.
        data: all fields after the overrides; None for a scenario built in Python.
        replaced: paths that `Scenario.replace` changed.
    """

    positions: Positions = field(default_factory=Positions)
    data: Mapping[str, Any] | None = None
    replaced: tuple[Path, ...] = ()

    def positions_of(self, scenario: Section) -> Positions:
        """Return the positions of the scenario's values.

        A value that differs from the file does not have the line in the file: pydantic's
        `model_copy` changes values without a record.
        """
        changed = list(self.replaced)
        if self.data is not None:
            then, now = (
                {path: (type(value), value) for path, value in leaves(data)}
                for data in (self.data, data_of(scenario))
            )
            changed += [path for path in then | now if then.get(path) != now.get(path)]
        return self.positions.moved(changed, IN_PYTHON)


BUILT_IN_PYTHON = Origin()


def is_change(place: Location) -> bool:
    """Whether the place of a value is `--set` or Python instead of a file."""
    return place == IN_PYTHON or place.file.startswith("--set ")


MEANT_BY_A_WORD = {"recompute": "strategy", "software": "stack"}
"""Sections that can be written as a single word, and the field that the word sets."""


def spell_out_words(document: YamlDocument) -> YamlDocument:
    """Expand single words, such as `recompute: full`, to sections.

    Overrides can then set fields of the section, and errors can point to the word.
    """
    data, positions = document.data, document.positions
    for name, inner in MEANT_BY_A_WORD.items():
        if name not in data or isinstance(data[name], dict):
            continue
        data = data | {name: {inner: data[name]}}
        if (name,) in positions.places:
            place = positions.places[name,]
            positions = Positions({**positions.places, (name, inner): place})
    return YamlDocument(data, positions)


# Divisors and multiples of numbers near a value, the nearest first.

_REACH = 16
"""Multiples to try on each side of a value."""


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def near_divisors(value: int, of: int, at_least: int = 1) -> Iterator[int]:
    """Yield the divisors of `of` from `at_least` up, the nearest to `value` first."""
    yield from _nearest_first(value, (each for each in divisors(of) if each >= at_least))


def near_multiples(value: int, step: int) -> Iterator[int]:
    """Yield positive multiples of `step`, the nearest to `value` first."""
    factor = value // step
    factors = range(max(1, factor - _REACH), max(1, factor) + _REACH + 2)
    yield from _nearest_first(value, (factor * step for factor in factors))


def _nearest_first(value: int, candidates: Iterable[int]) -> list[int]:
    legal = (number for number in candidates if 1 <= number <= MAX_COUNT and number != value)
    return sorted(legal, key=lambda number: (abs(number - value), number))


# The section `memory` of a scenario.


class MemoryOptions(Section):
    """Options that trade time for memory, besides recompute.

    zero_stage: states that are sharded over the replicas: none (0, default), optimizer states (1,
        Megatron-LM's distributed optimizer), also gradients (2), also parameters (3).
    shard_over: number of replicas over which each state is sharded; by default (null) all of them.
        With fewer, each group of neighbouring replicas holds a copy, and gradients are summed over
        the groups after their reduce-scatter: PyTorch's HSDP, or Megatron-LM with several instances
        of the distributed optimizer. With 8, a group can fit on one node.
    reshard_after_forward: with zero_stage 3, true (default) frees the parameters of a layer after
        its forward pass and gathers them again for the backward pass; false keeps them.
    reduce_every_microbatch: with zero_stage 2 and 3, true (default) reduces the gradients of every
        microbatch; false accumulates unsharded gradients and reduces them after the last microbatch
        (set_requires_gradient_sync of PyTorch's FSDPModule).
    offload_optimizer: true keeps optimizer states on the host, where the CPUs run Adam; false by
        default.
    deallocate_outputs: true (default) frees the output of a stage after it is sent (paper, Appendix
        B).
    in_place_cross_entropy: true if the loss subtracts the maximum of the fp32 logits in place, as
        Megatron-LM did until 2022 and does since June 2024; false if it allocates a copy. The
        software stack sets the default.
    """

    zero_stage: int = Field(default=0, ge=0, le=3, examples=[1])
    shard_over: Count | None = Field(default=None, examples=[8])
    reshard_after_forward: bool = Field(default=True, examples=["false"])
    reduce_every_microbatch: bool = Field(default=True, examples=["false"])
    offload_optimizer: bool = Field(default=False, examples=["true"])
    deallocate_outputs: bool = Field(default=True, examples=["false"])
    in_place_cross_entropy: bool | None = Field(default=None, examples=["false"])


# The section `overlap` of a scenario: which communication overlaps with compute.

# A number of parameters, or a rule by name.
_BucketRule = Annotated[
    Annotated[int, Field(ge=1, le=MAX_COUNT), Tag("count")]
    | Annotated[Literal["layer", "megatron"], Tag("rule")],
    Discriminator(lambda value: "rule" if isinstance(value, str) else "count"),
]


class Overlap(Section):
    """Which communication overlaps with compute; the defaults are those of the paper's runs.

    tensor_parallel: true overlaps the tensor-parallel collectives of the backward pass with the
        gradient products. The software stack sets the default.
    userbuffers: true pipelines the all-gathers and reduce-scatters of QKV, projection and MLP with
        their products, chunk by chunk, in the forward and the backward pass; false by default.
        This is Megatron-LM's --tp-comm-overlap with Transformer Engine's defaults, or PyTorch's
        asynchronous tensor parallelism.
    pipeline: true sends between stages asynchronously; false blocks. By default a schedule from a
        file is asynchronous, 1f1b and gpipe block, and the software stack decides for interleaved
        (Megatron-Core is asynchronous; --no-overlap-p2p-communication). With false, orders that
        Megatron-LM does not have send each pass's output and receive the next one's input in one
        blocking call between both.
    shared_expert: true runs the shared expert during the all-to-alls of the routed experts
        (--moe-shared-expert-overlap); false (default) runs it after them.
    merged_passes: true runs the forward pass of a microbatch beside the backward pass of another
        one, so that kernels of one hide the expert all-to-alls of the other; false runs passes one
        after another. The software stack sets the default of layouts that can merge them, which
        is false for most. For interleaved stages and without a pipeline, it is Megatron-LM's
        --overlap-moe-expert-parallel-comm. Schedules in files say themselves which passes they
        merge; dualpipe and dualpipev always merge.
    delayed_weight_gradients: true runs the weight gradients of merged passes after the all-to-all
        that follows them, which then starts earlier (--delay-wgrad-compute). The software stack
        sets the default of passes that it merges, which is false for most.
    data_parallel: true overlaps the gradient reduction with the backward pass; false reduces after
        it. The software stack sets the default (nemo overlaps).
    parameter_gather: with the distributed optimizer (memory.zero_stage 1), true overlaps the gather
        of new parameters with the first forward passes of the next iteration
        (--overlap-param-gather); false gathers after the optimizer. A simulated iteration runs from
        one optimizer step to the next, so it begins with these gathers. The software stack sets the
        default (nemo overlaps).
    prefetch: with memory.zero_stage 3 and data_parallel, number of layers whose parameters are
        gathered ahead of the running layer; 1 by default. PyTorch's FSDPModule sets it with
        set_modules_to_forward_prefetch and set_modules_to_backward_prefetch.
    gradient_buckets: which gradients are reduced together, and which parameters are gathered
        together. layer (default): one bucket per layer. megatron: buckets of at least max(40M, 1M x
        data) parameters on the first chunk of the first stage, and one bucket for every other
        chunk. A number: as megatron, with buckets of at least this number of parameters
        (--ddp-bucket-size).
    align_gradient_reduction: true makes all stages start to reduce the gradients of a chunk at
        about the same time; false makes each stage start on its own. The software stack sets the
        default of stages that overlap the reduction (Megatron-Core aligns them;
        --no-align-grad-reduce), for its own schedules. Other orders align them as Megatron-LM does:
        with one chunk all stages but the first reduce after their last pass, with several that loop
        over the stages, stage s reduces a chunk after s further backward passes.
    align_parameter_gather: true makes all stages start to gather the parameters of a chunk at about
        the same time, ahead of its first forward pass; false makes each stage start on its own. The
        software stack sets the default of interleaved stages that overlap the gather
        (Megatron-Core aligns them; --no-align-param-gather).
    """

    tensor_parallel: bool | None = Field(default=None, examples=["true"])
    userbuffers: bool = Field(default=False, examples=["true"])
    pipeline: bool | None = Field(default=None, examples=["true"])
    merged_passes: bool | None = Field(default=None, examples=["true"])
    delayed_weight_gradients: bool | None = Field(default=None, examples=["true"])
    data_parallel: bool | None = Field(default=None, examples=["true"])
    parameter_gather: bool | None = Field(default=None, examples=["true"])
    prefetch: Count = Field(default=1, examples=[2])
    gradient_buckets: _BucketRule = Field(default="layer", examples=["megatron or 40000000"])
    align_gradient_reduction: bool | None = Field(default=None, examples=["true"])
    align_parameter_gather: bool | None = Field(default=None, examples=["true"])
    shared_expert: bool = Field(default=False, examples=["true"])


# The section `recompute` of a scenario: which activations are recomputed.

Strategy = Literal["none", "selective", "ops", "full", "auto"]
"""Strategies that choose another one."""
Module = Literal[
    "core_attention", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"
]
MODULES: tuple[Module, ...] = get_args(Module)
"""The legal values of recompute.modules."""
DEFAULT_MODULES: tuple[Module, ...] = ("core_attention",)
OpKind = Literal[
    "products",
    "alternate_products",
    "attention",
    "all_gathers",
    "reduce_scatters",
    "all_reduces",
    "all_to_alls",
]
OP_KINDS: tuple[OpKind, ...] = get_args(OpKind)
"""Kinds of ops in recompute.saved_ops; other entries are names of ops."""
DEFAULT_SAVED_OPS: tuple[str, ...] = ("alternate_products", "attention", "reduce_scatters")
"""Source: torchtitan's list of ops that selective checkpointing per op saves."""


def _ordered(modules: tuple[Module, ...]) -> tuple[Module, ...]:
    """Sort modules in the order of `MODULES`, so that equivalent policies compare equal."""
    if not modules or len({*modules}) < len(modules):
        fix = "write each module once; for no recompute, set recompute.strategy to none"
        raise FieldError((), "is empty, or lists a module twice", fix)
    return tuple(module for module in MODULES if module in modules)


def _ordered_ops(ops: tuple[str, ...]) -> tuple[str, ...]:
    """Sort kinds before names, so that equivalent policies compare equal."""
    if len({*ops}) < len(ops) or not all(op.strip() for op in ops):
        raise FieldError((), "lists an op twice, or an empty name", "write each op once")
    kinds = [kind for kind in OP_KINDS if kind in ops]
    return (*kinds, *sorted(op for op in ops if op not in OP_KINDS))


# A number of microbatches, or "auto". The tag makes pydantic report one error, not one per type.
_CountOrAuto = Annotated[
    Annotated[int, Field(ge=0, le=MAX_COUNT), Tag("count")]
    | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if value == "auto" else "count"),
]


class RecomputePolicy(Section):
    """Which activations are freed in the forward pass and recomputed in the backward pass.

    `recompute: full` is short for `recompute: {strategy: full}`. Names and meaning follow
    Megatron-LM (core/recompute.py; paper, Sections 4 and 5 and Appendix C):

    strategy: what to recompute: nothing (none, default), some modules of each layer (selective),
        all but some ops of each layer (ops), or whole layers (full); auto chooses the fastest of
        none, selective and full that fits in memory. If modules are set, the default is selective;
        if saved_ops are set, ops.
    modules: modules of each layer that selective recomputes (recompute_modules); core_attention by
        default. core_attention, mlp, moe and shared_experts save their inputs. Norms (layernorm),
        activations of experts (moe_act) and up projections of latent attention (mla_up_proj) also
        free their outputs after use.
    saved_ops: ops of each layer whose outputs the strategy ops keeps, with the layer's input;
        everything else that the backward pass needs is computed again. Kinds: products,
        alternate_products (the first, third, ... of a layer), attention, all_gathers,
        reduce_scatters, all_reduces, all_to_alls; or names of ops, as run --show ops prints
        them. Default: alternate_products, attention and reduce_scatters, as torchtitan's selective
        checkpointing per op (create_selective_checkpoint_contexts of PyTorch).
    method, num_layers: units of full recompute; uniform and 1 by default. uniform cuts the layers
        of a chunk into units of `num_layers` layers (the last unit may be shorter), each of which
        saves only its input. block recomputes the first `num_layers` layers of each chunk one by
        one; the others save all activations.
    keep_microbatches: number of outstanding microbatches per stage that save all activations
        (num_microbatches_with_partial_activation_checkpoints); 0 by default. auto takes as many as
        fit in memory on each stage.
    """

    strategy: Strategy = Field(default="none", examples=["selective"])
    modules: Annotated[tuple[Module, ...], Field(strict=False), AfterValidator(_ordered)] = Field(
        default=DEFAULT_MODULES, examples=["[core_attention, layernorm]"]
    )
    saved_ops: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_ordered_ops)] = (
        Field(default=DEFAULT_SAVED_OPS, examples=["[products, attention]"])
    )
    method: Literal["uniform", "block"] = Field(default="uniform", examples=["block"])
    num_layers: Count = Field(default=1, examples=[1])
    keep_microbatches: _CountOrAuto = Field(default=0, examples=["2 or auto"])

    @property
    def is_open(self) -> bool:
        return "auto" in (self.strategy, self.keep_microbatches)

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, written: Any) -> Any:
        """Expand a single word to a section; derive the strategy from modules or saved_ops."""
        if isinstance(written, dict):
            for field, strategy in (("modules", "selective"), ("saved_ops", "ops")):
                if field in written:
                    return {"strategy": strategy, **written}
        return written if isinstance(written, (dict, cls)) else {"strategy": written}


# The section `precision` of a scenario: dtypes of compute, gradients and optimizer states.

Compute = Literal["bf16", "fp16", "fp32", "fp8", "fp4"]
GradientType = Literal["fp32", "bf16", "fp16"]
Fp8RecipeName = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
Fp8Weights = Literal["cached", "rows", "gathered", "cast"]
"""How fp8 products get their weights: from fp8 copies that last an iteration (cached), from one
such copy that each backward pass transposes (rows), from a gather of ZeRO stage 3 in fp8
(gathered), or from a cast of the bf16 weight at each use (cast)."""
_PRODUCTS_OF = {"delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
BYTES_OF = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 2, "fp4": 2, "remainder": 2}


class Precision(Section):
    """Dtypes of compute, gradients and optimizer states; Megatron-LM's arguments in parentheses.

    compute: dtype of weights, activations and products; bf16 by default. fp8 (--fp8-format) applies
        to the linear layers inside transformer layers and to the inputs that they save; everything
        else is bf16. So does fp4 (--fp4-format), always with the recipe NVFP4.
    tf32: true runs fp32 products on tensor cores, which round the inputs to 19 bits; false by
        default.
    fp8_recipe: how numbers are scaled to fp8 (--fp8-recipe): by the maximum of earlier iterations
        (delayed, default), of the tensor (tensorwise), of each block of 128 numbers (blockwise) or
        of each 32 numbers (mxfp8).
    first_layers_bf16, last_layers_bf16: number of layers at the start, or at the end, that stay in
        bf16 in a model in fp8 or fp4 (--first-last-layers-bf16 with --num-layers-at-start-in-bf16
        and --num-layers-at-end-in-bf16); 0 by default.
    fp8_parameters: true gathers the weights of fp8 products in fp8 (--fp8-param-gather; torchao's
        enable_fsdp_float8_all_gather). Megatron-LM then stores the weights in fp8, torchtitan in
        fp32. With the recipe mxfp8 Megatron-LM gathers bf16 and casts afterwards. With adapters
        (model.lora) nothing is gathered, and frozen weights are held in fp8 alone, without further
        casts. By default the software stack's choice for the recipe.
    fp8_dispatch: true sends tokens to experts, and gradients of their outputs, in fp8 with a scale
        for each block (DeepSeek-V3); what comes back stays bf16. Megatron-LM always sends bf16;
        false by default.
    fp8_activation_inputs: true saves the inputs of SwiGLU in fp8, and casts them back in the
        backward pass (Megatron-Core's activation_func_fp8_input_store); false by default.
    attention_output_bits: bits of each element of attention's output that is saved. With 12, one
        copy serves the backward passes of attention and of its projection (DeepSeek-V3's E5M6);
        16 by default.
    gradients: dtype in which gradients are accumulated and reduced. The software stack sets the
        default of weights in bf16 (nemo has bf16); others have fp32.
    exp_avg, exp_avg_sq: dtype of this moment of Adam (--exp-avg-dtype, --exp-avg-sq-dtype); fp32 by
        default.
    main_parameters: dtype of the optimizer's copy of each parameter: fp32 (default), or remainder,
        the 16 bits that fp32 has beyond bf16 (Transformer Engine's store_param_remainders).
    """

    compute: Compute = Field(default="bf16", examples=["bf16"])
    tf32: bool = Field(default=False, examples=["true"])
    fp8_recipe: Fp8RecipeName = Field(default="delayed", examples=["tensorwise"])
    first_layers_bf16: CountOrZero = Field(default=0, examples=[1])
    last_layers_bf16: CountOrZero = Field(default=0, examples=[4])
    fp8_parameters: bool | None = Field(default=None, examples=["true"])
    fp8_dispatch: bool = Field(default=False, examples=["true"])
    fp8_activation_inputs: bool = Field(default=False, examples=["true"])
    attention_output_bits: Literal[12, 16] = Field(default=16, examples=["12"])
    gradients: GradientType | None = Field(default=None, examples=["fp32"])
    exp_avg: Literal["fp32", "bf16"] = Field(default="fp32", examples=["bf16"])
    exp_avg_sq: Literal["fp32", "bf16"] = Field(default="fp32", examples=["bf16"])
    main_parameters: Literal["fp32", "remainder"] = Field(default="fp32", examples=["remainder"])

    @property
    def casts(self) -> bool:
        return self.compute in ("fp8", "fp4")

    @property
    def weights(self) -> str:
        return "bf16" if self.casts else self.compute

    @property
    def compute_bytes(self) -> int:
        return BYTES_OF[self.compute]

    @property
    def state_bytes(self) -> tuple[int, int, int]:
        main = 0 if self.compute == "fp32" else BYTES_OF[self.main_parameters]
        return main, BYTES_OF[self.exp_avg], BYTES_OF[self.exp_avg_sq]

    @property
    def product_type(self) -> str:
        """Data type of the products outside fp8 and fp4 (`workload.work.ProductType`)."""
        if self.compute != "fp32":
            return "bf16"
        return "tf32" if self.tf32 else "fp32"

    @property
    def linear_product_type(self) -> str:
        """Data type of the products of linear layers inside transformer layers."""
        if self.compute == "fp4":
            return "nvfp4"
        return _PRODUCTS_OF[self.fp8_recipe] if self.compute == "fp8" else self.product_type

    @property
    def narrow_states(self) -> bool:
        return (self.exp_avg, self.exp_avg_sq, self.main_parameters) != ("fp32",) * 3
