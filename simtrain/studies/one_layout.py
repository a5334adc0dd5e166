"""What studies of layouts say of a recorded program, which has one layout."""

from __future__ import annotations

from simtrain.errors import InputError
from simtrain.scenario import Scenario


def refuse_program(base: Scenario) -> None:
    """Refuse a scenario with a recorded program.

    Raises:
        InputError: it has one (E941).
    """
    if base.program is None:
        return
    reason = "a recording has the ops of the layout in which the program ran"
    fix = "record the program with other arguments and numbers of GPUs, and compare the scenarios"
    message = f"no layouts can be searched for the recorded program {base.program}"
    raise InputError.of("E941", message, base.positions.of_value(("program",)), fix, reason)
