"""Kinds of kernels: what the names of kernels, and of the ops that launched them, say."""

from __future__ import annotations

import functools
import re
import tomllib
from enum import Enum
from pathlib import Path
from typing import Any

from simtrain.base.values import dataclass


class Role(Enum):
    """What a kernel counts as beside others that run at the same time."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class KernelKind:
    """A kind of kernels; `kinds.toml` says what its fields mean."""

    name: str
    label: str
    role: Role = Role.COMPUTE
    kernels: re.Pattern[str] | None = None
    ops: re.Pattern[str] | None = None
    is_grouped: bool = False
    is_ordered: bool = False


def _kind(row: dict[str, Any]) -> KernelKind:
    kernels, ops = (
        re.compile(row[key], re.I) if key in row else None for key in ("kernels", "ops")
    )
    role = Role(row.get("role", "compute"))
    is_ordered = role is Role.COMMUNICATION or "is_ordered" in row
    return KernelKind(
        row["name"], row["label"], role, kernels, ops, "is_grouped" in row, is_ordered
    )


_ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["kind"]
KINDS = tuple(map(_kind, _ROWS))
"""All kinds but `OTHER`, in the order in which names are tried."""
KIND_NAMED = {kind.name: kind for kind in KINDS}
COPY, TRANSFER, OPTIMIZER, OTHER_COLLECTIVE = (
    KIND_NAMED[name] for name in ("copy", "transfer", "optimizer", "other_collective")
)
OTHER = KernelKind("other", "other")
_GENERIC = re.compile(
    r"elementwise|reduce_kernel|CatArray|triton_|copy|RadixSort|DeviceScan", re.IGNORECASE
)
"""Kernels that many ops share: the name of the op says more."""
OPTIMIZER_STEP = "Optimizer.step"
"""What the profiler writes around the steps of optimizers."""
OUR_PREFIXES = re.compile(r"^(ncclDevKernel |Memcpy DtoD )")
"""What simtrain's traces write before the names of ops, so that other programs know them."""


@functools.lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str, op: str = "", step: str = "") -> KernelKind:
    """Return the kind of a kernel.

    Args:
        name: of the kernel.
        op: innermost op that launched it, if the trace has it; for a collective its own name.
        step: annotation around the launch, such as "Optimizer.step#AdamW.step", "nccl:all_to_all".
    """
    of_name = _first(name, "kernels")
    if of_name is not None and of_name.role is Role.COMMUNICATION:
        # NCCL runs an all-to-all as sends and receives.
        of_words = [_first(text, "ops") for text in (op, step) if text]
        named = [kind for kind in of_words if kind and kind.role is Role.COMMUNICATION]
        return named[0] if named and of_name in (TRANSFER, OTHER_COLLECTIVE) else of_name
    if of_name is not None and of_name.role is Role.COPY:
        return of_name
    if step.startswith(OPTIMIZER_STEP):
        return OPTIMIZER
    if of_name is None or _GENERIC.search(name):
        of_op = _first(op, "ops") if op else None
        if of_op is not None and of_op.role is Role.COMPUTE:
            return of_op
    return of_name or OTHER


@functools.lru_cache(maxsize=1 << 16)
def kind_of_op(name: str) -> KernelKind | None:
    """Return the kind of an op that runs on the host; None if its parts say more."""
    return _first(name, "ops")


def _first(name: str, patterns: str) -> KernelKind | None:
    for kind in KINDS:
        pattern = getattr(kind, patterns)
        if pattern is not None and pattern.search(name):
            return kind
    return None
