"""The sections of hybrid models: the pattern of their layers, and the sizes of Mamba-2 layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from simtrain.base.strict_yaml import FieldError
from simtrain.scenario.other_names import MAMBA_NAMES
from simtrain.scenario.section import Count, Section

MAMBA, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"
"""Letters of a pattern, as Megatron-Core's `Symbols`."""
_NAMES = {MAMBA: "Mamba-2", ATTENTION: "attention", MLP: "an MLP", EXPERTS: "experts"}
_NOT_SIMULATED = {
    "G": "a gated delta net",
    "D": "sparse attention (DSA)",
    "C": "compressed sparse attention",
    "H": "hybrid compressed attention",
    "W": "attention with a window",
    "+": "latent attention",
    "/": "the start of token prediction",
    "|": "the end of a pipeline stage",
    "[": "a group of layers",
    "]": "a group of layers",
}
"""What Megatron-Core means by other letters (core/models/hybrid)."""
_FIX = "write one letter per layer: " + ", ".join(f"{key} {name}" for key, name in _NAMES.items())


class Mamba(Section):
    """The Mamba-2 layers of a hybrid model (Dao and Gu 2024), with Megatron-LM's names.

    num_heads: number of heads; by default (null), heads with 2 x hidden_size channels together.
    head_dim: channels of a head; 64 by default.
    state_dim: numbers that each channel's state has; 128 by default.
    num_groups: number of groups of heads that share B and C, the inputs and outputs of states; 8 by
        default.
    chunk_size: tokens that the scan computes at once by products; 128 by default, as in
        Megatron-LM.
    """

    other_names: ClassVar[Mapping[str, str]] = MAMBA_NAMES

    num_heads: Count | None = Field(default=None, examples=[128])
    head_dim: Count = Field(default=64, examples=[64])
    state_dim: Count = Field(default=128, examples=[128])
    num_groups: Count = Field(default=8, examples=[8])
    chunk_size: Count = Field(default=128, examples=[256])


def checked_pattern(pattern: str) -> str:
    """Return a pattern of layers if all of its letters are simulated.

    Raises:
        FieldError: a letter stands for another block, or for none.
    """
    for letter in pattern:
        if letter not in _NAMES:
            meaning = _NOT_SIMULATED.get(letter)
            said = f", {meaning}, which is not simulated" if meaning else ", which is no layer"
            raise FieldError((), f"the pattern has {letter!r}{said}", _FIX)
    return pattern
