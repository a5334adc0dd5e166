"""What options and arguments complete: names that begin with what is typed."""

from __future__ import annotations

from collections.abc import Callable


def _shipped(kind: str) -> Callable[[str], list[str]]:
    """Return a function that completes the names of what comes with simtrain."""

    def names(typed: str) -> list[str]:
        """Return the names that begin with the typed text."""
        from simtrain.base import resources

        return [name for name in getattr(resources, f"list_{kind}")() if name.startswith(typed)]

    return names


shipped_scenarios = _shipped("scenarios")
shipped_sweeps = _shipped("sweeps")
shipped_profiles = _shipped("profiles")
shipped_stacks = _shipped("stacks")


def error_codes(typed: str) -> list[str]:
    """Return the codes of errors that begin with the typed text."""
    from simtrain.scenario.explanations import explanations

    return [code for code in explanations() if code.startswith(typed.upper())]


def settable_fields(typed: str) -> list[str]:
    """Return the fields of a scenario that --set can begin with."""
    from simtrain.base.strict_yaml.validation import settable_names
    from simtrain.scenario import Scenario

    return [name for name in settable_names(Scenario) if name.startswith(typed)]
