"""What a user writes about a training run: its tokens, its goodput, and limits to meet."""

from __future__ import annotations

from simtrain.errors import InputError, Location
from simtrain.units import UnitError, parse_tokens


def read_tokens(written: str) -> int:
    """Read a number of tokens such as "300B".

    Raises:
        InputError: not a whole number of tokens above zero.
    """
    try:
        return parse_tokens(written)
    except UnitError as error:
        raise InputError.of("E841", str(error), Location("--tokens"), error.fix) from error


def check_goodput(goodput: float) -> None:
    """Refuse a share of the training time that is not above 0 and at most 1.

    Raises:
        InputError: with the range.
    """
    if not 0 < goodput <= 1:
        raise InputError.of(
            "E842",
            f"a goodput of {goodput:g}",
            Location("--goodput"),
            fix="write a number above 0 and at most 1, such as 0.9",
            reason="goodput is the share of the training time that iterations take",
        )
