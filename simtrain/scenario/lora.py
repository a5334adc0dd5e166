"""The section `model.lora` of a scenario: adapters of a frozen model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field

from simtrain.base.strict_yaml import FieldError
from simtrain.scenario.other_names import LORA_NAMES
from simtrain.scenario.section import Count, Section

LoraModule = Literal[
    "linear_qkv",
    "linear_proj",
    "linear_fc1",
    "linear_fc2",
    "linear_q",
    "linear_k",
    "linear_v",
    "linear_fc1_gate",
    "linear_fc1_up",
]
MODULES: tuple[LoraModule, ...] = get_args(LoraModule)
CANONICAL_PARTS: Mapping[str, tuple[LoraModule, ...]] = MappingProxyType(
    {
        "linear_qkv": ("linear_q", "linear_k", "linear_v"),
        "linear_fc1": ("linear_fc1_gate", "linear_fc1_up"),
    }
)
"""Modules of canonical LoRA, by the module of the fused weight."""


def _ordered(modules: tuple[LoraModule, ...]) -> tuple[LoraModule, ...]:
    """Sort modules, so that equivalent adapters compare equal."""
    if not modules or len({*modules}) < len(modules):
        raise FieldError((), "is empty, or lists a module twice", "write each module once")
    for whole, parts in CANONICAL_PARTS.items():
        both = [part for part in parts if part in modules and whole in modules]
        if both:
            message = f"lists {whole} and {both[0]}, an adapter for a part of the same weight"
            raise FieldError((), message, f"remove {whole} or {', '.join(both)}")
    return tuple(module for module in MODULES if module in modules)


class Lora(Section):
    """Fine-tuning with low-rank adapters (LoRA). All other parameters are frozen.

    Frozen parameters have no gradients and no optimizer states. The scale of the adapters (alpha)
    affects neither time nor memory.

    rank: columns of the first and rows of the second matrix of each adapter (Megatron-Bridge's
        dim).
    modules: linear layers with an adapter, by Megatron-Core's names; all four by default:
        linear_qkv (queries, keys and values), linear_proj (after attention), linear_fc1 (the first
        product of the MLP, with the gate), linear_fc2 (the second one). linear_q, linear_k,
        linear_v, linear_fc1_gate and linear_fc1_up have an adapter for a part of a fused weight
        (canonical LoRA; Hugging Face's q_proj, k_proj, v_proj, gate_proj and up_proj).
    dropout: dropout rate of the adapters' inputs, 0 by default. A rate of 0 runs no kernel; all
        other rates take the same time and memory.
    """

    other_names: ClassVar[Mapping[str, str]] = LORA_NAMES

    rank: Count = Field(examples=[16])
    modules: Annotated[tuple[LoraModule, ...], Field(strict=False), AfterValidator(_ordered)] = (
        Field(
            default=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
            examples=["[linear_qkv, linear_proj]"],
        )
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, examples=[0.1])

    def adapts(self, module: str) -> bool:
        """Whether a linear layer, by the module of its fused weight, has an adapter."""
        return not {module, *CANONICAL_PARTS.get(module, ())}.isdisjoint(self.modules)
