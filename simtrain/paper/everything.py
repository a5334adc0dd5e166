"""All targets at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simtrain.paper.comparison import Comparison
from simtrain.paper.entries import Reproduction

Reproduced = Comparison | Reproduction


@dataclass(frozen=True, slots=True)
class Everything:
    """What was reproduced, by target."""

    targets: Mapping[str, Reproduced]

    @property
    def misses(self) -> tuple[str, ...]:
        """What lies beyond a threshold, in words, after the name of its target."""
        return tuple(
            f"{name}: {miss}" for name, result in self.targets.items() for miss in result.misses
        )

    @property
    def ok(self) -> bool:
        """Whether every target is reproduced."""
        return not self.misses

    def to_json(self) -> dict[str, Any]:
        """Plain data in full precision."""
        return {
            "targets": {name: result.to_json() for name, result in self.targets.items()},
            "misses": list(self.misses),
            "ok": self.ok,
        }
