"""Names that other rooms still import from here."""

from simtrain.scenario.check import (
    check_overrides,
    load_scenario,
    load_unchecked,
    read_scenario,
    with_paths_beside,
)

__all__ = [
    "check_overrides",
    "load_scenario",
    "load_unchecked",
    "read_scenario",
    "with_paths_beside",
]
