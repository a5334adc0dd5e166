"""The section of a scenario that says which activations are computed again."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from simtrain.scenario.model import MAX_COUNT, Count
from simtrain.scenario.section import Section
from simtrain.strict_yaml import FieldError

Strategy = Literal["none", "selective", "full", "auto"]
Module = Literal[
    "core_attention", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"
]
MODULES: tuple[Module, ...] = get_args(Module)
"""The modules that selective recompute can name."""
DEFAULT_MODULES: tuple[Module, ...] = ("core_attention",)


def _ordered(modules: tuple[Module, ...]) -> tuple[Module, ...]:
    """Modules in the order of `MODULES`, so that equal policies are equal."""
    if not modules or len({*modules}) < len(modules):
        fix = "write each module once; for no recompute, set recompute.strategy to none"
        raise FieldError((), "names no module, or one twice", fix)
    return tuple(module for module in MODULES if module in modules)


# A number of microbatches, or "auto"; told apart first, so that a wrong value has one error.
_CountOrAuto = Annotated[
    Annotated[int, Field(ge=0, le=MAX_COUNT), Tag("count")]
    | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if value == "auto" else "count"),
]


class RecomputePolicy(Section):
    """Which activations are dropped in the forward pass and computed again in the backward.

    A word alone (`recompute: full`) is its strategy. Names and meaning are Megatron-LM's
    (core/recompute.py; paper, Sections 4 and 5 and Appendix C):

    strategy: recompute nothing (none), modules of each layer (selective), whole layers (full), or
        whichever is the fastest that fits in memory (auto). Given modules, selective by default.
    modules: what selective recomputes of each layer (recompute_modules). core_attention, mlp, moe
        and shared_experts keep their inputs. Norms (layernorm), activations of experts (moe_act)
        and up projections of latent attention (mla_up_proj) also drop their outputs, once those
        have been used.
    method, num_layers: units of full recompute. With uniform the layers of a chunk are cut into
        units of `num_layers` (the last may be shorter), each keeping only its input; with block the
        first `num_layers` layers of each chunk are recomputed one by one and the others keep
        everything.
    distribute: each tensor-parallel rank keeps 1/t of a unit's input and gathers it before the
        unit is run again (distribute_saved_activations).
    keep_microbatches: forward passes, of those that a stage has outstanding, that keep everything
        (num_microbatches_with_partial_activation_checkpoints); auto: on each stage as
        many as fit.
    """

    strategy: Strategy = Field(default="none", examples=["selective"])
    modules: Annotated[tuple[Module, ...], Field(strict=False), AfterValidator(_ordered)] = Field(
        default=DEFAULT_MODULES, examples=["[core_attention, layernorm]"]
    )
    method: Literal["uniform", "block"] = Field(default="uniform", examples=["block"])
    num_layers: Count = Field(default=1, examples=[1])
    distribute: bool = Field(default=False, examples=["true"])
    keep_microbatches: _CountOrAuto = Field(default=0, examples=["2 or auto"])

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, written: Any) -> Any:
        """The section that a word alone stands for; modules alone are of strategy selective."""
        if isinstance(written, dict) and "modules" in written:
            return {"strategy": "selective", **written}
        return written if isinstance(written, (dict, cls)) else {"strategy": written}
