"""What went wrong in a program, and at which of its lines."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any


class WrongProgram(Exception):
    """A program that is not as the recorder needs it."""


class Unrecordable(Exception):
    """Something of torch that a recording cannot have.

    Args:
        what: its name, such as "CPUOffloadPolicy".
        why: a reason.
        fix: what to do instead.
    """

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.why, self.fix = why, fix


_VALUES = "DataDependent", "DynamicOutputShapeException", "UnsupportedFakeTensorException"
"""Beginnings of the errors of fake tensors, which have no values."""
_CUDA = "CUDA", "NVIDIA driver", "cuda devices", "cuda is not available"
_CALLS = {
    "aten._local_scalar_dense.default": ".item()",
    "aten.nonzero.default": "nonzero()",
    "aten.masked_select.default": "masked_select()",
    "aten.unique_consecutive.default": "unique()",
    "aten._unique2.default": "unique()",
    "aten.repeat_interleave.Tensor": "repeat_interleave()",
    "aten.equal.default": "equal()",
}
"""What users write for ops that need values; `if tensor` and `tolist()` are `.item()` too."""


def problem_of(error: BaseException, script: str) -> dict[str, Any]:
    """Return the kind of an error, its message, and the line of the program that caused it."""
    line, text = _line_of(error, Path(script).parent)
    kind, message = type(error).__name__, str(error).strip().split("\n")[0][:300]
    name = "raised"
    if isinstance(error, WrongProgram):
        name = "wrong"
    elif isinstance(error, Unrecordable):
        name = "unrecordable"
    elif kind.removeprefix("GuardOn").startswith(_VALUES):
        name = "value"
        message = _CALLS.get(str(getattr(error, "func", message)), message)
    elif isinstance(error, ImportError):
        name, message = ("package", error.name) if error.name else ("packages", message)
    elif isinstance(error, SystemExit):
        name, message = "exit", str(error.code)
    elif any(words in message for words in _CUDA):
        name = "cuda"
    return {
        "name": name,
        "kind": kind,
        "message": message,
        "file": line[0] if line else script,
        "line": line[1] if line else None,
        "source": text[:300],
        "why": getattr(error, "why", None),
        "fix": getattr(error, "fix", None),
    }


def _line_of(error: BaseException, folder: Path) -> tuple[tuple[str, int] | None, str]:
    """Return file and number of the last line of the user's that ran, and its text."""
    frames = traceback.extract_tb(error.__traceback__)
    of_user = [frame for frame in frames if _is_beside(frame.filename, folder)]
    if not of_user or of_user[-1].lineno is None:
        return None, ""
    return (of_user[-1].filename, of_user[-1].lineno), of_user[-1].line or ""


def _is_beside(file: str, folder: Path) -> bool:
    path = Path(file)
    return path.is_relative_to(folder) and "site-packages" not in path.parts
