"""What a rank asks of its host when the optimizer is offloaded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HostResource(StrEnum):
    """What limits an op of the host."""

    LINK = "link"
    ADAM = "adam"


@dataclass(frozen=True, slots=True)
class HostOp:
    """Bytes that cross the link between a GPU and its host, or that the host's Adam moves."""

    name: str
    num_bytes: int
    resource: HostResource
