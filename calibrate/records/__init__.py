"""Measurements on disk: the schema, the file, checks, and results of nccl-tests."""

from typing import Literal, TypeAlias

Compute: TypeAlias = Literal["bf16", "fp16", "fp32"]
"""A data type of training, the one that training prefers first."""
