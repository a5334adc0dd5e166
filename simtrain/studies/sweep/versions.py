"""Versions of the programs that write the parts of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from simtrain.base.version import VERSION


def versions() -> dict[str, str]:
    """Versions of the installed programs that affect a part's bytes."""
    return {"simtrain": VERSION, "pyarrow": metadata.version("pyarrow")}


def version_words(versions: Mapping[str, str]) -> str:
    """Format versions: "simtrain 0.1.0, pyarrow 18.0.0"."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())
