"""The section `recompute` of a scenario: which activations are recomputed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from simtrain.base.strict_yaml import FieldError
from simtrain.scenario.section import MAX_COUNT, Count, Section

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
    distribute: true makes each tensor-parallel rank save 1/t of the input of a unit and gather it
        before recompute (distribute_saved_activations); false by default.
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
    distribute: bool = Field(default=False, examples=["true"])
    keep_microbatches: _CountOrAuto = Field(default=0, examples=["2 or auto"])

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, written: Any) -> Any:
        """Expand a single word to a section; derive the strategy from modules or saved_ops."""
        if isinstance(written, dict):
            for field, strategy in (("modules", "selective"), ("saved_ops", "ops")):
                if field in written:
                    return {"strategy": strategy, **written}
        return written if isinstance(written, (dict, cls)) else {"strategy": written}
