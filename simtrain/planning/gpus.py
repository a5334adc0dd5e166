"""Numbers of GPUs as a user writes them: a list, or a range of powers of two."""

from __future__ import annotations

from simtrain.errors import InputError, Location

_MOST = 2**24
"""No cluster is larger: a longer number is a typing error."""


def read_gpus(written: str) -> tuple[int, ...]:
    """Read "128,256", or "128..4096" for the powers of two from 128 to 4096.

    Raises:
        InputError: not such a list, or a range without a power of two.
    """
    parts = [part.strip() for part in written.split(",")]
    return tuple(dict.fromkeys(number for part in parts for number in _numbers(part, written)))


def _numbers(part: str, written: str) -> list[int]:
    first, dots, last = part.partition("..")
    least = _number(first, written)
    if not dots:
        return [least]
    most = _number(last, written)
    numbers = [2**power for power in range(_MOST.bit_length()) if least <= 2**power <= most]
    if not numbers:
        raise _error(f"no power of two lies in {part}")
    return numbers


def _number(text: str, written: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= _MOST:
        return int(text)
    raise _error(f'"{written}" is neither numbers of GPUs nor a range of them')


def _error(message: str) -> InputError:
    fix = (
        f"write numbers from 1 to {_MOST:,} without separators, --gpus 128,256,512, or a range of "
        "powers of two, --gpus 128..4096"
    )
    return InputError.of("E845", message, Location("--gpus"), fix)
