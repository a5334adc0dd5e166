"""Parse quantities with units into bytes, seconds and FLOP/s, and format them.

Decimal prefixes are powers of 1000 and binary ones powers of 1024 (GB = 1e9, GiB = 2**30). A
lower-case b is a bit and a capital B a byte: "200 Gb/s" is 25e9 bytes/s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

GIB = 2**30
HOUR_S, DAY_S = 3600, 86_400
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": GIB, "Ti": 2**40, "Pi": 2**50}
# The micro sign and the Greek mu look alike and both are typed.
_FRACTIONS = {"": 1, "m": 10**3, "u": 10**6, "\u00b5": 10**6, "\u03bc": 10**6, "n": 10**9}

# A number as in YAML, followed by the unit.
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*)", re.DOTALL)
_CURRENCY = re.compile(r"(?<![A-Za-z])[A-Z]{3}$")
_CURRENCY_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "EUR": "EUR", "GBP": "GBP"}
_NOT_FINITE = re.compile(r"[+-]?\.?(nan|inf|infinity)\b", re.IGNORECASE)
# Numbers outside this range are refused as typing errors.
_SMALLEST, _LARGEST = 1e-30, 1e30


class UnitError(ValueError):
    """An invalid quantity; `fix` says what to write instead."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Dimension:
    """A kind of quantity: its units in base units, and an example."""

    name: str
    units: Mapping[str, Fraction]
    example_units: tuple[str, ...] = ()
    example_number: str = ""

    def remedy(self, number: str | None = None) -> str:
        """Suggest what to write, with the user's number if there is one."""
        number = number or self.example_number
        return "write " + " or ".join(f'"{number} {unit}"' for unit in self.example_units)


def _multiples(prefixes: Mapping[str, int], unit: str, size: int = 1) -> dict[str, Fraction]:
    return {prefix + unit: Fraction(scale, size) for prefix, scale in prefixes.items()}


_BITS_IN_BYTE = 8
MEMORY = Dimension(
    "memory", _multiples(_DECIMAL, "B") | _multiples(_BINARY, "B"), ("GiB", "GB"), "80"
)
BANDWIDTH = Dimension(
    "bandwidth",
    _multiples(_DECIMAL, "B/s")
    | _multiples(_BINARY, "B/s")
    | _multiples(_DECIMAL, "b/s", _BITS_IN_BYTE)
    | _multiples(_DECIMAL, "bps", _BITS_IN_BYTE),
    ("GB/s", "Gb/s"),
    "200",
)
TIME = Dimension(
    "time",
    {prefix + "s": Fraction(1, divisor) for prefix, divisor in _FRACTIONS.items()},
    ("us", "ms"),
    "2",
)
COMPUTE_RATE = Dimension(
    "compute rate",
    _multiples(_DECIMAL, "FLOP/s") | _multiples(_DECIMAL, "FLOPS"),
    ("TFLOP/s", "GFLOP/s"),
    "312",
)
POWER = Dimension("power", _multiples(_DECIMAL, "W"), ("W", "kW"), "400")
_COUNTS = _multiples({"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}, "")
_TOKENS = Dimension("tokens", _COUNTS | {"tokens": Fraction(1)})
_MONEY = Dimension("money", _COUNTS)
_TOKENS_REMEDY = 'write a number, plain or with K, M, B or T: "450e9", "300B", "1.5T"'
# The last three have no fields; they are listed to name a wrong unit in errors.
_DIMENSIONS = (
    MEMORY,
    BANDWIDTH,
    TIME,
    COMPUTE_RATE,
    POWER,
    Dimension("frequency", _multiples(_DECIMAL, "Hz")),
    Dimension("bits", _multiples(_DECIMAL, "b")),
    Dimension("work", _multiples(_DECIMAL, "FLOP")),
)


def _wrong_unit(unit: str, dimension: Dimension) -> str:
    for other in _DIMENSIONS:
        if unit in other.units:
            return f'"{unit}" is a unit of {other.name}, not of {dimension.name}'
    if unit in (*_DECIMAL, *_BINARY):
        return f'"{unit}" alone is ambiguous: a prefix without its unit'
    return f'"{unit}" is not a unit of {dimension.name}'


def _parse(value: object, dimension: Dimension, *, zero_allowed: bool = False) -> Fraction:
    """Parse a quantity into base units, exactly.

    Raises:
        UnitError: not text, no unit, an unknown unit or a unit of another dimension, not a finite
            number, negative, or zero if zero is not allowed.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = str(value) if 0 < value < float("inf") else None
        raise UnitError(f"{value} has no unit", dimension.remedy(number))
    if not isinstance(value, str):
        raise UnitError(f"{value!r} is not a quantity of {dimension.name}", dimension.remedy())
    text = value.strip()
    if _NOT_FINITE.match(text):
        raise UnitError(f'"{text}" is not a finite number', dimension.remedy())
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f'"{text}" is not a quantity of {dimension.name}', dimension.remedy())
    number, unit = match[1], match[2].strip()
    exact = _number_in_range(number, text, dimension, zero_allowed)
    if unit in dimension.units:
        return exact * dimension.units[unit]
    message = _wrong_unit(unit, dimension) if unit else f'"{text}" has no unit'
    raise UnitError(message, dimension.remedy(number))


def _number_in_range(number: str, text: str, dimension: Dimension, zero_allowed: bool) -> Fraction:
    # Check as a float first: the exact value of 1e999999999 would fill the memory.
    approximate = float(number)
    if approximate == 0 and zero_allowed:
        return Fraction(0)
    if approximate <= 0:
        limit = "must not be negative" if zero_allowed else "must be above zero"
        raise UnitError(f'"{text}" {limit}', dimension.remedy())
    if not _SMALLEST <= approximate <= _LARGEST:
        limit = f"{_SMALLEST:g} to {_LARGEST:g}"
        raise UnitError(f'"{text}" is outside the range {limit}', dimension.remedy())
    return Fraction(number)


def parse_bytes(value: object) -> int:
    """Parse an amount of memory such as "80 GiB" or "1.5 GB" into whole bytes.

    Raises:
        UnitError: as `_parse`, or less than one byte.
    """
    num_bytes = round(_parse(value, MEMORY))
    if num_bytes == 0:
        raise UnitError(f'"{value}" is less than one byte', MEMORY.remedy())
    return num_bytes


def _reader(dimension: Dimension, *, zero_allowed: bool = False) -> Callable[[object], float]:
    """Return a function that parses text with a unit; it raises as `_parse`."""
    return lambda value: float(_parse(value, dimension, zero_allowed=zero_allowed))


# Parsers of text such as "200 Gb/s", "2 us", "312 TFLOP/s" and "400 W".
parse_bytes_per_s = _reader(BANDWIDTH)
parse_seconds = _reader(TIME)
parse_non_negative_seconds = _reader(TIME, zero_allowed=True)
parse_flops_per_s = _reader(COMPUTE_RATE)
parse_watts = _reader(POWER)
parse_non_negative_watts = _reader(POWER, zero_allowed=True)


@dataclass(frozen=True, slots=True)
class Price:
    """A price per hour.

    Args:
        per_hour: the amount.
        currency: its three-letter code (ISO 4217).
    """

    per_hour: float
    currency: str


def parse_price(value: object) -> Price:
    """Parse a price such as "3.43 USD/h", in any currency.

    Raises:
        UnitError: as `_parse`.
    """
    text = value.strip() if isinstance(value, str) else ""
    match = _CURRENCY.search(text.removesuffix("/h"))
    currency = match[0] if match and text.endswith("/h") else _currency_in(text)
    number = re.search(r"[0-9]+(?:\.[0-9]+)?", text)
    written = number[0] if number and float(number[0]) else "3.43"
    price = Dimension("price", {f"{currency}/h": Fraction(1)}, (f"{currency}/h",), written)
    return Price(per_hour=float(_parse(value, price)), currency=currency)


def parse_tokens(value: object) -> int:
    """Parse a number of tokens such as "300B", "1.5T" or "450e9"; B is 1e9.

    Raises:
        UnitError: as `_parse`, or not a whole number.
    """
    try:
        tokens = _parse(value, _TOKENS)
    except UnitError as error:
        raise UnitError(str(error), _TOKENS_REMEDY) from error
    if tokens.denominator != 1:
        raise UnitError(f'"{value}" is not a whole number of tokens', _TOKENS_REMEDY)
    return int(tokens)


def parse_money(value: str) -> tuple[float, str | None]:
    """Parse an amount such as "2M" or "2M USD": the amount, and its currency if it has one.

    Raises:
        UnitError: as `_parse`.
    """
    text = value.strip()
    currency = text[-3:] if re.search("[A-Z]{3}$", text) else None
    try:
        return float(_parse(text.removesuffix(currency or "").strip(), _MONEY)), currency
    except UnitError as error:
        sign = _currency_in(text)
        remedy = f'write an amount, plain or with K, M, B or T: "2M", "1.5e6", "2M {sign}"'
        raise UnitError(f'"{text}" is not an amount of money: {error}', remedy) from error


def _currency_in(text: str) -> str:
    return next((name for sign, name in _CURRENCY_SIGNS.items() if sign in text), "USD")


_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_ROUNDING_S = 1e-12
_ROUNDING = 1e-9


def format_seconds(duration_s: float) -> str:
    """Format a duration with four digits: "37.83 s", "2 µs".

    Less than a picosecond is the rounding of a difference of times, and gives "0 s".
    """
    return _format(duration_s * (abs(duration_s) >= _ROUNDING_S), [*_SECONDS.items()])


def format_seconds_range(least_s: float, most_s: float) -> str:
    """Format two durations with the unit and the decimals of the longer: "0.762 to 1.171 s".

    Durations that read alike are written once: "3.843 ms".
    """
    most = format_seconds(most_s)
    number, unit = most.split(" ")
    decimals = len(number.partition(".")[2])
    least = f"{least_s / _SECONDS[unit]:.{decimals}f}"
    return most if least == number else f"{least} to {most}"


def with_micro_sign(text: str) -> str:
    """Replace the unit "us", which is easier to type, by "µs", which all output has."""
    return re.sub(r"(?<=[0-9]) us\b", " µs", text)


def format_bytes(num_bytes: float) -> str:
    """Format an amount of memory with four digits and a binary prefix: "79.15 GiB"."""
    prefixes = (("TiB", 2**40), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
    return _format(num_bytes, prefixes)


def gib(num_bytes: float) -> str:
    """Format an amount of memory in GiB, without the unit: "79.15"."""
    return f"{num_bytes / GIB:.2f}"


def format_decimal(value: float, unit: str) -> str:
    """Format a quantity with four digits and a decimal prefix: "312 TFLOP/s", "6.5 kW"."""
    prefixes = [(f"{prefix}{unit}", float(scale)) for prefix, scale in _DECIMAL.items()]
    return _format(value, prefixes[::-1])


def four_digits(value: float) -> str:
    """Format a number with four significant digits: "1.280", or "1.28" if it is exact."""
    return significant(value, 4)


def significant(value: float, digits: int) -> str:
    """Format a number with significant digits, or as an integer if that has as many.

    Zeros at the end show that the number is rounded. An exact number has none.
    """
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    text = f"{value:.{digits}g}"
    is_exact = math.isclose(float(text), value, rel_tol=_ROUNDING)
    return text if is_exact else f"{value:#.{digits}g}".removesuffix(".")


def short_amount(value: float) -> str:
    """Format an amount with three digits: "0.04", "13.2", "278k", "2.20M"."""
    sizes = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))
    name, size = next((each for each in sizes if value >= 0.9995 * each[1]), ("", 1.0))
    return f"{significant(value / size, 3)}{name}"


def short_interval(ends: Mapping[str, float], unit: float = 1.0) -> str:
    """Format the ends `p5` and `p95` of an interval: "13.1–15.6", "278k–2.20M"."""
    return "–".join(short_amount(ends[name] / unit) for name in ("p5", "p95"))


def counted(number: int, noun: str) -> str:
    """Format a number of things: "1 part", "7,938 parts"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_energy(energy_j: float) -> str:
    """Format an energy in watt-hours: "73.4 MWh"."""
    prefixes = (("GWh", 3.6e12), ("MWh", 3.6e9), ("kWh", 3.6e6), ("Wh", 3.6e3), ("J", 1.0))
    return _format(energy_j, prefixes)


def _format(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Format `value` in the largest unit that it reaches, or else in the smallest."""
    fitting = ((unit, scale) for unit, scale in units if abs(value) >= scale)
    base = next((unit, scale) for unit, scale in units if scale == 1)
    unit, scale = next(fitting, units[-1]) if value else base
    return f"{four_digits(value / scale)} {unit}"
