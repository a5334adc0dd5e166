"""Kinds of columns: how a value becomes the text that people read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simtrain.base.values import dataclass
from simtrain.units import (
    format_bytes,
    format_seconds,
    four_digits,
    gib,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How the values of a column read.

    Args:
        text: the text of a value; None reads as nothing.
        is_number: aligned to the right, on one line.
        is_whole: text on one line.
        is_bar: shares of 1, drawn as bars where a medium can.
        is_change: signed shares, which a page also draws as bars to the left and right.
        is_entry: names of entries of a hardware profile, which a page links to.
    """

    text: Callable[[Any], str]
    is_number: bool = True
    is_whole: bool = False
    is_bar: bool = False
    is_entry: bool = False
    is_change: bool = False


TEXT = Kind(str, is_number=False)
WHOLE_TEXT = Kind(str, is_number=False, is_whole=True)
ENTRY = Kind(str, is_number=False, is_whole=True, is_entry=True)
NUMBER = Kind(str)
COUNT = Kind("{:,}".format)
SECONDS = Kind(format_seconds)
BYTES = Kind(format_bytes)
GIB = Kind(gib)
FOUR_DIGITS = Kind(four_digits)
SHARE = Kind("{:.1%}".format)
FINE_SHARE = Kind("{:.2%}".format)
SIGNED_SHARE = Kind("{:+.1%}".format, is_change=True)
BAR = Kind(lambda _: "", is_number=False, is_bar=True)


def amount(value: float) -> str:
    """Format an amount with four digits: "0.04", "2,240,900"."""
    return f"{value:,.0f}" if value >= 1000 else four_digits(value)


AMOUNT = Kind(amount)


def signed_seconds(value: float) -> str:
    """Format a difference of times with its sign: "+1.205 s"."""
    return ("+" if value > 0 else "") + format_seconds(value)


SIGNED_SECONDS = Kind(signed_seconds)
