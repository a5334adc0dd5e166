"""Reads tables of timed matrix products (CSV), such as cuBLAS benchmarks print, as records.

Columns: `m`, `n`, `k`; one of `time_s`, `time_ms`, `time_us`, `tflops`; and, if they differ from
one product forward in bf16, `batch`, `layout` (TN, NN, NT) and `dtype` (bf16, fp16, fp32, fp8).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from calibrate.records.schema import GemmRecord, GemmWork, Header, Timing
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.hardware.profile import HardwareProfile

_SIZES = "m", "n", "k"
_OTHERS = "batch", "layout", "dtype"
_TIMES = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6}
_RATE = "tflops"
_MOST_BYTES = 64 << 20


def read_products(path: Path) -> list[GemmRecord]:
    """Read a table; of products that it has several times, the median counts.

    Raises:
        InputError: E727, a column or a cell is missing or unreadable.
    """
    lines = read_text(path, _MOST_BYTES).splitlines()
    place = Location(str(path), 1)
    reader = csv.DictReader(io.StringIO("\n".join(lines)))
    headings = [(name or "").strip().lower() for name in reader.fieldnames or []]
    reader.fieldnames = headings
    if missing := [name for name in _SIZES if name not in headings]:
        raise _unreadable(f"no column {', '.join(missing)}", place)
    if not {_RATE, *_TIMES} & {*headings}:
        raise _unreadable(f"no column of times: {', '.join([*_TIMES, _RATE])}", place)
    known = {*_SIZES, *_OTHERS, *_TIMES, _RATE}
    if unknown := [name for name in headings if name not in known]:
        reason = did_you_mean(unknown[0], sorted(known)) or f"known are {', '.join(sorted(known))}"
        raise _unreadable(f"unknown column {unknown[0]!r}", place, reason)
    times: dict[GemmWork, list[float]] = {}
    for row in reader:
        location = Location(str(path), reader.line_num)
        work = _work(row, location)
        times.setdefault(work, []).append(_seconds(row, work, location))
    if not times:
        raise _unreadable("no products", place)
    return [*_records(times, path)]


def header_like(profile: HardwareProfile, command: str) -> Header:
    """The header of records that say nothing of their machine: one GPU of a profile's."""
    return Header(
        device=profile.name.upper(),
        backend="none",
        num_ranks=1,
        num_sms=profile.gpu.num_sms.value,
        memory_bytes=profile.gpu.memory_capacity.value,
        date="not in the table",
        command=command,
        software={"torch": "not in the table", "cuda": "not in the table"},
    )


def _work(row: Mapping[str, str | None], location: Location) -> GemmWork:
    cells = {name: (row.get(name) or "").strip() for name in (*_SIZES, *_OTHERS)}
    sizes: dict[str, object] = {}
    for name, cell in cells.items():
        if not cell and name not in _SIZES:
            continue
        if name in (*_SIZES, "batch"):
            if not cell.isascii() or not cell.isdigit() or len(cell) > 18:
                raise _unreadable(f'{name} is "{cell}", not a whole number from 1', location)
            sizes[name] = int(cell)
        else:
            sizes[name] = cell.upper() if name == "layout" else cell.lower()
    try:
        return GemmWork.model_validate(sizes)
    except ValidationError as error:
        first = error.errors()[0]
        raise _unreadable(f"{first['loc'][0]}: {first['msg']}", location) from error


def _seconds(row: Mapping[str, str | None], work: GemmWork, location: Location) -> float:
    for name, factor in {**_TIMES, _RATE: 1e12}.items():
        if not (cell := (row.get(name) or "").strip()):
            continue
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise _unreadable(f'{name} is "{cell}", not a number above 0', location)
        flops = 2 * work.batch * work.m * work.n * work.k
        return flops / (number * factor) if name == _RATE else number * factor
    raise _unreadable("no time", location)


def _records(times: Mapping[GemmWork, list[float]], path: Path) -> Iterator[GemmRecord]:
    for work, seconds in times.items():
        middle = sorted(seconds)[len(seconds) // 2]
        spread = (max(seconds) - min(seconds)) / 2
        try:
            timing = Timing(median_s=middle, spread_s=spread, num_samples=len(seconds))
        except ValidationError as error:
            message = f"{middle:g} s for {work.m} × {work.n} × {work.k} is no time of a product"
            raise _unreadable(message, Location(str(path))) from error
        yield GemmRecord(**work.model_dump(), time=timing)


def _unreadable(message: str, location: Location, reason: str = "") -> InputError:
    fix = "write columns m, n, k and time_us (or tflops), a product a line"
    return InputError.of("E727", f"the table of products has {message}", location, fix, reason)
