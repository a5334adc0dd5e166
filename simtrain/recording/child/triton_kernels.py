"""Triton kernels of a program, which need a GPU to run: they are logged with their tensors.

What a kernel computes is not known, so each of its tensors counts as read once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import torch

_MODULES = "triton.runtime.jit", "triton.runtime.autotuner"


@contextmanager
def patched(launch: Callable[[str, Sequence[torch.Tensor]], None]) -> Iterator[None]:
    """Launch Triton's kernels with a function of ours inside the `with` block.

    Args:
        launch: takes the name of a kernel and its tensors.
    """
    modules: list[Any] = []
    with suppress(ImportError):
        modules += map(importlib.import_module, _MODULES)

    def run(kernel: Any, *args: Any, **options: Any) -> None:
        """Log a kernel instead of running it."""
        values = [*args, *options.values()]
        launch(kernel.fn.__name__, [x for x in values if isinstance(x, torch.Tensor)])

    def run_tuned(kernel: Any, *args: Any, **options: Any) -> Any:
        """Run a kernel without trying configurations."""
        return kernel.fn.run(*args, **options)

    with ExitStack() as stack:
        names = ("JITFunction", run), ("Autotuner", run_tuned)
        for module, (name, stand_in) in zip(modules, names, strict=False):
            stack.enter_context(mock.patch.object(getattr(module, name), "run", stand_in))
        yield
