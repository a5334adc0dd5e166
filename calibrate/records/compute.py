"""The data types in which a machine trains; a light module, because help imports it."""

from typing import Literal, TypeAlias

Compute: TypeAlias = Literal["bf16", "fp16", "fp32"]
"""A data type of training, the one that training prefers first."""
