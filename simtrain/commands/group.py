"""Groups of commands by name, each imported at its first use: most calls use one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

MISSED = 4
"""Exit code if an error is above its threshold, or nothing meets the limits."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class CliGroup(Mapping[str, Any]):
    """Functions and other groups by the names of commands. Without words it prints its help.

    Args:
        help: its help.
        sources: returns commands as "module:function" or "module:group". It is called when a
            command is looked up, so that its errors are printed like others.
        default: returns the command that takes a first word that is no command; "" for none.
        version: what `--version` prints. The group with a version can install completion.
    """

    def __init__(
        self,
        help: str,
        sources: Callable[[], Mapping[str, str]],
        default: Callable[[str], str] = lambda word: "",
        version: str = "",
    ) -> None:
        self.help, self.default, self.version = help, default, version
        self._find = sources

    @cached_property
    def _sources(self) -> Mapping[str, str]:
        return self._find()

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self._sources[name].partition(":")
        return getattr(import_module(module), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def named_by(self, path: str, words: Sequence[str]) -> tuple[str, Any, Sequence[str]]:
        """Return the command or group that the first words name, its path, and the other words."""
        name, others = "".join(words[:1]), words[1:]
        if name not in self and name[:1] not in ("", "-"):
            name, others = self.default(name), words
        if name not in self:
            return path, self, words
        path, command = f"{path} {name}", self[name]
        is_group = isinstance(command, CliGroup)
        return command.named_by(path, others) if is_group else (path, command, others)
