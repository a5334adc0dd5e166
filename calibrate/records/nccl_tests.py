"""Reads the output of nccl-tests (text, or JSON of `-J`) as records of collectives.

Sources: NVIDIA/nccl-tests, src/common.cu (columns, in microseconds and GB/s) and doc/PERFORMANCE.md
(bus bandwidth is algorithm bandwidth times a factor of the collective and the number of ranks). The
size of all-gather and reduce-scatter is the size of the whole array.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.records.schema import (
    LARGEST_COUNT,
    LONGEST_S,
    CollectiveOp,
    CollectiveRecord,
    Timing,
)
from simtrain.base.input_file import open_input
from simtrain.base.strict_yaml import read_text
from simtrain.errors import InputError, Location

_Row = tuple[int | None, int, tuple[Any, ...]]
"""Its line, timed runs, and its bytes, microseconds, algorithm and bus bandwidth in GB/s."""
_ITERATIONS = re.compile(r"warmup iters: \d+ iters: (\d{1,9})\b")
_RANK = re.compile(
    r"^#\s+Rank\s+\d+ .*\bon\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]\n]*\](?P<device>[^\n]*)$", re.M
)
_STARTING = re.compile(r"Collective test starting: (\w+?)_perf")
_OPS: dict[str, CollectiveOp] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
}
"""Collectives by the names of the tests, and by ours."""
_ROUNDING_GB_PER_S = 0.006
"""Both bandwidths are printed to 0.01 GB/s."""
_MOST_BYTES, _BEGINNING = 16 << 20, 1 << 16
_SIGNS = b"nThread", b"busbw", b'"bus_bw"'
_COLUMNS = 8
"""size, count, type, redop, root, time, algbw, busbw: out of place; those in place follow."""


def bus_factor(op: CollectiveOp, num_ranks: int) -> float:
    """Bus over algorithm bandwidth of a collective."""
    if op == "send_recv":
        return 1.0
    return (2 if op == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


@dataclass(frozen=True, slots=True)
class Log:
    """The records of one output of nccl-tests, and the device that it names; "" if it does not."""

    path: Path
    device: str
    records: list[CollectiveRecord]


def is_log(path: Path) -> bool:
    """Whether a file is the output of nccl-tests, by its header, or a key that -J writes."""
    try:
        with open_input(path) as file:
            beginning = file.read(_BEGINNING)
    except OSError:
        return False
    return any(sign in beginning for sign in _SIGNS)


def read_log(path: Path) -> Log:
    """Read the out-of-place times of an output, which holds one collective.

    Ranks and their nodes are those that it lists; the collective stands in it or in its name.

    Raises:
        InputError: E711, the file is no such output or does not say what it is of, a row is absurd,
            or its bus bandwidth is not that of this collective over these ranks.
    """
    text = read_text(path, _MOST_BYTES)
    is_json = text.lstrip().startswith("{")
    rows, ranks = _read_json(path, text) if is_json else (_text_rows(path, text), _text_ranks(text))
    named = _STARTING.search(text)
    tests = [named[1]] if named else [name for name in _OPS if name in path.stem.replace("-", "_")]
    op = _OPS.get(tests[0]) if tests else None
    if op is None:
        fix = f"name the file after it, such as {next(iter(_OPS))}_2_nodes.txt"
        raise _wrong(path, None, "does not say which collective it is of", fix)
    if len(ranks) < 2:
        fix = "keep the lines that list them: #  Rank  0 Group  0 Pid 4711 on node0 device 0 ..."
        raise _wrong(path, None, "does not list two ranks or more", fix)
    factor, records = bus_factor(op, len(ranks)), []
    group: Any = {"num_ranks": len(ranks), "num_nodes": len({host for host, _ in ranks})}
    for line, samples, values in rows:
        size, time_us, algbw, busbw = _numbers(path, line, values)
        if not size:
            continue
        if time_us == 0:
            raise _wrong(path, line, "the time is 0", "measure it again, with more iterations")
        if abs(busbw - algbw * factor) > _ROUNDING_GB_PER_S * (1 + factor):
            message = (
                f"busbw is {busbw:g} GB/s where {op} over {len(ranks)} ranks has "
                f"{algbw * factor:.2f} for an algbw of {algbw:g}"
            )
            raise _wrong(path, line, message, "give the file of one run as nccl-tests wrote it")
        time = Timing(median_s=time_us * 1e-6, spread_s=0.0, num_samples=samples)
        records.append(CollectiveRecord(op=op, array_bytes=int(size), **group, time=time))
    if not records:
        raise _wrong(path, None, "holds no row of sizes and times", "run nccl-tests with -b and -e")
    return Log(path, ranks[0][1], records)


def _text_ranks(text: str) -> list[tuple[str, str]]:
    return [(match["host"], match["device"].strip()) for match in _RANK.finditer(text)]


def _text_rows(path: Path, text: str) -> Iterator[_Row]:
    match = _ITERATIONS.search(text)
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or not fields[0].isdigit():
            continue
        if len(fields) < _COLUMNS:
            raise _wrong(path, number, f"has {len(fields)} columns", "copy the rows as printed")
        yield number, int(match[1]) if match else 1, (fields[0], *fields[5:8])


def _read_json(path: Path, text: str) -> tuple[list[_Row], list[tuple[str, str]]]:
    try:
        data = json.loads(text)
        timed: list[Any] = [(each["size"], each["out_of_place"]) for each in data["results"]]
        rows: list[_Row] = [
            (None, 1, (size, of["time"], of["alg_bw"], of["bus_bw"])) for size, of in timed
        ]
        ranks = [(str(each["hostname"]), str(each["device_info"])) for each in data["devices"]]
    except (ValueError, KeyError, TypeError) as error:
        wanted = 'results with "size" and "out_of_place": {"time", "alg_bw", "bus_bw"}'
        raise _wrong(path, None, f"is not what nccl-tests -J writes: {error!r}", wanted) from error
    return rows, ranks


def _numbers(path: Path, line: int | None, values: tuple[Any, ...]) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong(path, line, f"{error}", "size, time, algbw and busbw are numbers") from error
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise _wrong(path, line, f"{values} are not all finite and positive", "measure it again")
    if numbers[0] > LARGEST_COUNT or numbers[1] > 1e6 * LONGEST_S:
        message = f"{numbers[0]:g} bytes in {numbers[1]:g} us are no collective"
        limit = f"sizes are at most {LARGEST_COUNT:g} bytes, and times {1e6 * LONGEST_S:g} us"
        raise _wrong(path, line, message, limit)
    return numbers


def _wrong(path: Path, line: int | None, message: str, fix: str) -> InputError:
    return InputError.of("E711", message, Location(str(path), line), fix)
