"""`simtrain scenarios`."""

from __future__ import annotations

from simtrain.commands.shared import emit


def scenarios() -> None:
    """List the scenarios that come with simtrain.

    Example: simtrain scenarios
    """
    from simtrain.resources import list_scenarios
    from simtrain.scenario import load_scenario

    for name in list_scenarios():
        emit(f"{name}  {load_scenario(name).description or ''}".rstrip() + "\n")
