"""Parsing of --gpus: a list of numbers, or a range of powers of two."""

from __future__ import annotations

from simtrain.errors import InputError, Location

_MOST = 2**24
"""More GPUs than any cluster has: a larger number is a typing error."""


def read_gpus(written: str) -> tuple[int, ...]:
    """Parse "128,256", or "128..4096" for the powers of two from 128 to 4096.

    Raises:
        InputError: the text is neither, or a range contains no power of two (E845).
    """
    parts = [part.strip() for part in written.split(",")]
    return tuple(dict.fromkeys(number for part in parts for number in _numbers(part, written)))


def _numbers(part: str, written: str) -> list[int]:
    first, dots, last = part.partition("..")
    least = _number(first, written)
    if not dots:
        return [least]
    most = _number(last, written)
    if most < least:
        raise _error(f"the range {part} ends below its start")
    numbers = [2**power for power in range(_MOST.bit_length()) if least <= 2**power <= most]
    if not numbers:
        raise _error(f"{part} contains no power of two")
    return numbers


def _number(text: str, written: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= _MOST:
        return int(text)
    raise _error(f'"{written}" is neither a list of numbers of GPUs nor a range')


def _error(message: str) -> InputError:
    fix = (
        f"write numbers from 1 to {_MOST:,} without thousands separators, --gpus 128,256,512, or a "
        "range of powers of two, --gpus 128..4096"
    )
    return InputError.of("E845", message, Location("--gpus"), fix)
