"""The module that each op belongs to, also in the backward pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules import module as hooks

_WRAPPER = re.compile(r"\b_fsdp_wrapped_module(\.|$)")
"""The name under which FullyShardedDataParallel keeps the module that it wraps."""


class Modules:
    """The modules that run now, and those of autograd's nodes.

    A node of the backward pass has the sequence number of the forward op that it belongs to.
    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._running: list[str] = []
        self._of_sequence: dict[int, str] = {}
        self._latest = ""

    def name(self, model: torch.nn.Module) -> None:
        """Name the modules of a model as its parameters are named."""
        named = model.named_modules()
        self.names = {id(each): _WRAPPER.sub("", name).rstrip(".") for name, each in named}

    @property
    def is_running(self) -> bool:
        """Whether the forward pass of a module runs."""
        return bool(self._running)

    def saw_op(self) -> None:
        """Remember the module of the node that autograd has made for an op."""
        if self._running:
            number = _get_sequence_nr() - 1
            # Ops without a node have the number of the node before.
            self._of_sequence.setdefault(number, self._running[-1])

    def current(self) -> str:
        """Return the name of the module that an op belongs to."""
        if self._running:
            self._latest = self._running[-1]
        else:
            node = torch._C._current_autograd_node()
            if node is not None:
                # Hooks of gradients run within the nodes before them.
                self._latest = self._of_sequence.get(node._sequence_nr(), self._latest)
            else:
                self._latest = ""
        return self._latest

    def forget(self) -> None:
        """Forget the latest module."""
        self._latest = ""

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Keep track of the modules that run inside the `with` block."""

        def enter(module: torch.nn.Module, args: Any) -> None:
            self._running.append(self.names.get(id(module), ""))

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            if self._running:
                self._running.pop()

        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
