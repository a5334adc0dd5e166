"""Names that other rooms still import from here."""

from simtrain.durations.model import (
    REFERENCE_HEAD_SIZE,
    AttentionMachine,
    attention_is_extrapolated,
    attention_seconds,
    narrow_head_slowdown,
    padded_channels,
)

__all__ = [
    "REFERENCE_HEAD_SIZE",
    "AttentionMachine",
    "attention_is_extrapolated",
    "attention_seconds",
    "narrow_head_slowdown",
    "padded_channels",
]
