import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.units import (
    Price,
    UnitError,
    format_bytes,
    format_energy,
    format_seconds,
    format_seconds_range,
    parse_bytes,
    parse_bytes_per_s,
    parse_flops_per_s,
    parse_non_negative_seconds,
    parse_price,
    parse_seconds,
    parse_tokens,
    parse_watts,
    with_micro_sign,
)

EXACT: list[tuple[Callable[[object], float], Mapping[str, float]]] = [
    (
        parse_bytes,
        {"80 GiB": 80 * 2**30, "80GiB": 80 * 2**30, "1.5 GB": 1_500_000_000, "64 KiB": 65_536}
        | {"1e3 B": 1_000, "79.15 GiB": 84_986_665_370, " 2 TiB ": 2**41},
    ),
    (
        parse_bytes_per_s,
        {"200 Gb/s": 25e9, "200 Gbps": 25e9, "600 GB/s": 6e11, "2.0 TB/s": 2e12, "8 b/s": 1.0}
        | {"26 GiB/s": 27_917_287_424.0},
    ),
    (
        parse_seconds,
        {"2 us": 2e-6, "2 µs": 2e-6, "2 μs": 2e-6, "1.5 ms": 1.5e-3, "3 s": 3.0, "10 ns": 1e-8}
        | {".5 s": 0.5, "1E-3 s": 1e-3},
    ),
    (
        parse_flops_per_s,
        {"312 TFLOP/s": 312e12, "250 GFLOP/s": 250e9, "312 TFLOPS": 312e12, "1 FLOP/s": 1.0},
    ),
    (parse_tokens, {"300B": 300 * 10**9, "1.5T": 15 * 10**11, "450e9": 45 * 10**10, "2 M": 2e6}),
    (parse_watts, {"6.5 kW": 6500.0, "400 W": 400.0}),
]


@pytest.mark.parametrize(("parse", "values"), EXACT)
def test_quantities_are_exact(
    parse: Callable[[object], float], values: Mapping[str, float]
) -> None:
    assert {text: parse(text) for text in values} == values
    assert isinstance(parse_bytes("1.5 GB"), int)


@pytest.mark.parametrize(
    ("value", "message", "fix"),
    [
        (80, "80 has no unit", 'write "80 GiB" or "80 GB"'),
        (1.5e9, "1500000000.0 has no unit", 'write "1500000000.0 GiB"'),
        ("80", '"80" has no unit', 'write "80 GiB" or "80 GB"'),
        ("80 G", '"G" alone is ambiguous', 'write "80 GiB" or "80 GB"'),
        ("80 Gi", '"Gi" alone is ambiguous', 'write "80 GiB" or "80 GB"'),
        ("80 GHz", '"GHz" is a unit of frequency, not of memory', 'write "80 GiB" or "80 GB"'),
        ("80 Gb", '"Gb" is a unit of bits, not of memory', 'write "80 GiB" or "80 GB"'),
        ("80 GB/s", '"GB/s" is a unit of bandwidth, not of memory', 'write "80 GiB"'),
        ("80 gb", '"gb" is not a unit of memory', 'write "80 GiB" or "80 GB"'),
        ("80 KB", '"KB" is not a unit of memory', 'write "80 GiB" or "80 GB"'),
        ("8,0 GB", '",0 GB" is not a unit of memory', 'write "8 GiB"'),
        ("-80 GB", '"-80 GB" must be above zero', 'write "80 GiB"'),
        ("0 GB", '"0 GB" must be above zero', 'write "80 GiB"'),
        ("nan GB", '"nan GB" is not a finite number', 'write "80 GiB"'),
        (".inf GB", '".inf GB" is not a finite number', 'write "80 GiB"'),
        ("-Infinity GB", "is not a finite number", 'write "80 GiB"'),
        (math.nan, "nan has no unit", 'write "80 GiB"'),
        (-1, "-1 has no unit", 'write "80 GiB"'),
        (True, "True is not a quantity of memory", 'write "80 GiB"'),
        (None, "None is not a quantity of memory", 'write "80 GiB"'),
        ("", '"" is not a quantity of memory', 'write "80 GiB"'),
        ("much", '"much" is not a quantity of memory', 'write "80 GiB"'),
        ("0.4 B", '"0.4 B" is less than one byte', 'write "80 GiB"'),
        ("1e999999999 GB", '"1e999999999 GB" is outside the range', 'write "80 GiB"'),
        ("1e-99 GB", '"1e-99 GB" is outside the range', 'write "80 GiB"'),
    ],
)
def test_values_that_are_not_an_amount_of_memory_are_refused(
    value: object, message: str, fix: str
) -> None:
    with pytest.raises(UnitError) as caught:
        parse_bytes(value)
    assert message in str(caught.value)
    assert fix in caught.value.fix


def test_a_wrong_dimension_names_the_right_one() -> None:
    with pytest.raises(UnitError, match='"GB" is a unit of memory, not of bandwidth') as caught:
        parse_bytes_per_s("600 GB")
    assert caught.value.fix == 'write "600 GB/s" or "600 Gb/s"'
    with pytest.raises(UnitError, match='"TFLOP" is a unit of work, not of compute rate'):
        parse_flops_per_s("312 TFLOP")


def test_only_non_negative_seconds_may_be_zero() -> None:
    assert parse_non_negative_seconds("0 s") == 0.0
    assert parse_non_negative_seconds("0e99 us") == 0.0
    with pytest.raises(UnitError, match='"0 s" must be above zero'):
        parse_seconds("0 s")
    with pytest.raises(UnitError, match='"-1 s" must not be negative'):
        parse_non_negative_seconds("-1 s")


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (37.83, "37.83 s"),
        (2e-6, "2 µs"),
        (1.5e-3, "1.5 ms"),
        (1.50004e-3, "1.500 ms"),
        (0.12, "120 ms"),
        (0.11999, "120.0 ms"),
        (0.9999999, "1000 ms"),
        (12345.6, "12346 s"),
        (5e-10, "0.5 ns"),
        (0.0, "0 s"),
        (3.6e-15, "0 s"),
        (-0.25, "-250 ms"),
    ],
)
def test_format_seconds(duration_s: float, text: str) -> None:
    assert format_seconds(duration_s) == text


def test_output_has_the_micro_sign() -> None:
    assert with_micro_sign("2 us inside a node, 5 users") == "2 µs inside a node, 5 users"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (80 * 2**30, "80 GiB"),
        (1, "1 B"),
        (0, "0 B"),
        (1536, "1.5 KiB"),
        (2**40, "1 TiB"),
        (2**50, "1024 TiB"),
        (1000 * 2**30, "1000 GiB"),
    ],
)
def test_format_bytes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@given(st.floats(min_value=1e-9, max_value=1e4))
def test_formatted_seconds_parse_back_to_four_digits(duration_s: float) -> None:
    assert parse_seconds(format_seconds(duration_s)) == pytest.approx(duration_s, rel=5e-4)


@given(st.integers(min_value=1, max_value=2**50))
def test_formatted_bytes_parse_back_to_four_digits(num_bytes: int) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=5e-4)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_above_zero_or_refused(text: str) -> None:
    try:
        parsed = parse_bytes_per_s(text)
    except UnitError as error:
        assert error.fix.startswith("write ")
    else:
        assert 0 < parsed < math.inf


def test_powers_and_prices() -> None:
    assert parse_price(" 3.43 EUR/h ") == Price(per_hour=3.43, currency="EUR")
    assert (format_energy(7.2e9), format_energy(1.8e6)) == ("2 MWh", "500 Wh")


@pytest.mark.parametrize("text", ["3 USD", "3", "USD/h", "3 XUSD/h", "-3 USD/h", "nan USD/h", 3.0])
def test_a_price_needs_a_currency_an_hour(text: object) -> None:
    with pytest.raises(UnitError) as refused:
        parse_price(text)
    assert "USD/h" in refused.value.fix


@pytest.mark.parametrize(
    ("least_s", "most_s", "text"),
    [
        (0.7618, 1.171, "0.762 to 1.171 s"),
        (0.01633, 0.03406, "16.33 to 34.06 ms"),
        (0.003843, 0.003843, "3.843 ms"),
        (0.0, 1.171, "0.000 to 1.171 s"),
        (0.0, 0.0, "0 s"),
    ],
)
def test_a_range_of_durations_has_one_unit(least_s: float, most_s: float, text: str) -> None:
    assert format_seconds_range(least_s, most_s) == text
