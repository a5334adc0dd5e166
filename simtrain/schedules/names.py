"""The names of pipeline schedules."""

from typing import Literal, TypeAlias

ScheduleName = Literal["gpipe", "1f1b", "interleaved"]
"""Megatron-LM's schedules."""

OrderName: TypeAlias = ScheduleName | Literal["custom"]
"""A schedule of Megatron-LM, or any other order of actions."""
