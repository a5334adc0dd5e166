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

from calibrate.records.file import RecordFile, identity, read_records
from calibrate.records.schema import (
    LARGEST_COUNT,
    LONGEST_S,
    CollectiveOp,
    CollectiveRecord,
    Timing,
)
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
_MOST_BYTES = 16 << 20
_COLUMNS = 8
"""size, count, type, redop, root, time, algbw, busbw: out of place; those in place follow."""


def bus_factor(op: CollectiveOp, num_ranks: int) -> float:
    """Bus over algorithm bandwidth of a collective."""
    if op == "send_recv":
        return 1.0
    return (2 if op == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


@dataclass(frozen=True, slots=True)
class Log:
    """The records of one output of nccl-tests, and the device that it names, if any."""

    path: Path
    device: str | None
    records: list[CollectiveRecord]


def read_log(
    path: Path,
    op: CollectiveOp | None = None,
    num_ranks: int | None = None,
    num_nodes: int | None = None,
) -> Log:
    """Read an output; what is not given is read from its header, or the op from the file's name.

    Raises:
        InputError: E711, as `read_nccl_tests`, or the output does not say what is not given.
    """
    text = read_text(path, _MOST_BYTES)
    hosts = [(match["host"], match["device"].strip()) for match in _RANK.finditer(text)]
    named = _STARTING.search(text)
    tests = [named[1]] if named else [name for name in _OPS if name in path.stem.replace("-", "_")]
    op = op or (_OPS.get(tests[0]) if tests else None)
    if op is None:
        names = " or ".join(dict.fromkeys(_OPS.values()))
        raise _wrong(path, None, "does not say which collective it is of", f"--op {names}")
    num_ranks = num_ranks or len(hosts)
    if num_ranks < 2:
        raise _wrong(path, None, "does not list two ranks or more", "--ranks N")
    num_nodes = num_nodes or len({host for host, _ in hosts}) or 1
    device = hosts[0][1] if hosts else None
    return Log(path, device, read_nccl_tests(path, op, num_ranks, num_nodes))


def add_log(folder: Path, log: Log) -> int:
    """Add the records of a log to the measurements of a folder; return the number of new ones.

    Raises:
        InputError: E712, the folder is of another device; or it holds no measurements.
    """
    header, _ = read_records(folder)
    device = log.device or "a GPU (NCCL runs on no other device)"
    if not header.is_gpu or (log.device and log.device != header.device):
        message = "the folder holds the measurements of another machine"
        fix = f"adapt a profile instead: calibrate nccl-tests {log.path} --base PROFILE -o FILE"
        reason = f"{folder} was measured on {header.device}, and {log.path} on {device}"
        raise InputError.of("E712", message, Location(str(folder)), fix, reason)
    file = RecordFile(folder, header)
    new = [record for record in log.records if identity(record) not in file.known]
    for record in new:
        file.write(record)
    return len(new)


def read_nccl_tests(
    path: Path, op: CollectiveOp, num_ranks: int, num_nodes: int = 1
) -> list[CollectiveRecord]:
    """The out-of-place times of a file, which holds one collective over `num_ranks`.

    Raises:
        InputError: the file cannot be read or is no such output, a row is absurd, or its bus
            bandwidth is not that of this collective over `num_ranks`.
    """
    text = read_text(path, _MOST_BYTES)
    records, factor = [], bus_factor(op, num_ranks)
    rows_of = _json_rows if text.lstrip().startswith("{") else _text_rows
    for line, samples, values in rows_of(path, text):
        size, time_us, algbw, busbw = _numbers(path, line, values)
        if not size:
            continue
        if time_us == 0:
            raise _wrong(path, line, "the time is 0", "measure it again, with more iterations")
        if abs(busbw - algbw * factor) > _ROUNDING_GB_PER_S * (1 + factor):
            message = (
                f"busbw is {busbw:g} GB/s where {op} over {num_ranks} ranks has "
                f"{algbw * factor:.2f} for an algbw of {algbw:g}"
            )
            raise _wrong(path, line, message, "check --op and --ranks")
        time = Timing(median_s=time_us * 1e-6, spread_s=0.0, num_samples=samples)
        group: Any = {"num_ranks": num_ranks, "num_nodes": num_nodes}
        records.append(CollectiveRecord(op=op, array_bytes=int(size), **group, time=time))
    if not records:
        raise _wrong(path, None, "holds no row of sizes and times", "run nccl-tests with -b and -e")
    return records


def _text_rows(path: Path, text: str) -> Iterator[_Row]:
    match = _ITERATIONS.search(text)
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or not fields[0].isdigit():
            continue
        if len(fields) < _COLUMNS:
            raise _wrong(path, number, f"has {len(fields)} columns", "copy the rows as printed")
        yield number, int(match[1]) if match else 1, (fields[0], *fields[5:8])


def _json_rows(path: Path, text: str) -> Iterator[_Row]:
    try:
        for result in json.loads(text)["results"]:
            timed: dict[str, Any] = result["out_of_place"]
            yield None, 1, (result["size"], timed["time"], timed["alg_bw"], timed["bus_bw"])
    except (ValueError, KeyError, TypeError) as error:
        wanted = 'results with "size" and "out_of_place": {"time", "alg_bw", "bus_bw"}'
        raise _wrong(path, None, f"is not what nccl-tests -J writes: {error!r}", wanted) from error


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
