"""Functions that a room calls without importing their room, which is built on it.

A result plots itself, but figures read results. The front of the package registers such functions
by their places (`simtrain/__init__.py`), and they are imported at their first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_PLACES: dict[str, str] = {}


def register(places: Mapping[str, str]) -> None:
    """Register functions: the place of each, such as "simtrain.errors.wrong_type", by its name."""
    _PLACES.update(places)


def registered(name: str) -> Any:
    """Import and return a registered function."""
    return imported(_PLACES[name])


def imported(place: str) -> Any:
    """Import the module of a place, and return the object there."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)
