"""`torch.compile`, left out: a recording has the ops of the eager program.

Which kernels a compiler fuses is a matter of the software stack (`recording.fusion`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch


class Compilation:
    """Stands for `torch.compile`, and knows whether the program runs what it would compile."""

    def __init__(self) -> None:
        self.is_left_out = False

    def remarks(self) -> Iterator[str]:
        """Say that it was left out."""
        if self.is_left_out:
            yield (
                "torch.compile is left out: the ops are those of the eager program. Of the "
                "software stacks, torchtitan_compiled fuses kernels as a compiler does."
            )

    def compile(self, model: Any = None, **options: Any) -> Any:
        """Return what is to be compiled as it is."""
        if model is None:
            return self.compile
        if isinstance(model, torch.nn.Module):
            self.is_left_out = True
            return model
        return self._marking(model)

    def _marking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            """Call the function."""
            self.is_left_out = True
            return function(*args, **kwargs)

        return call

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Leave compilation out inside the `with` block."""

        def of_module(module: torch.nn.Module, *args: Any, **options: Any) -> None:
            self.is_left_out = True

        with (
            mock.patch.object(torch, "compile", self.compile),
            mock.patch.object(torch.nn.Module, "compile", of_module),
        ):
            yield
