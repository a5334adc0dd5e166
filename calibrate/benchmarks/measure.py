"""Measures a machine point by point; points whose record exists are not measured again."""

from __future__ import annotations

import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from calibrate.benchmarks.collectives import collective_points, overlap_points
from calibrate.benchmarks.iterations import iteration_points
from calibrate.benchmarks.kernels import attention_points, host_points, kernel_points
from calibrate.benchmarks.layers import layer_points, memory_points
from calibrate.benchmarks.products import product_points
from calibrate.benchmarks.ranks import Ranks, check_launcher, joined
from calibrate.benchmarks.sizes import BenchmarkPart, Sizes
from calibrate.benchmarks.timing import Timer
from calibrate.records import Compute
from calibrate.records.file import MeasurementPoint, RecordFile, identity
from calibrate.records.schema import Header, doubtful
from simtrain.commands.printing import progress_bar
from simtrain.errors import InputError

_LINE_EVERY_S = 5.0
_MAX_REVISITS = 3
"""Times that doubtful points are measured again: a machine may be busy all the time."""
_WARM_UP_S = 0.5
_CPU_INFO = Path("/proc/cpuinfo")
_CONDITIONS = (
    *("clocks.sm", "clocks.mem", "clocks.max.sm"),
    *("temperature.gpu", "power.draw", "power.limit"),
)
_SHARES = {
    BenchmarkPart.PRODUCTS: 2,
    BenchmarkPart.KERNELS: 3,
    BenchmarkPart.COLLECTIVES: 2,
    BenchmarkPart.LAYERS: 3,
    BenchmarkPart.ITERATIONS: 4,
}
"""Shares of the time; layers and iterations judge the profile, so that all parts must be there."""
_PARTS: dict[BenchmarkPart, Sequence[Callable[[Sizes, Timer], list[MeasurementPoint]]]] = {
    BenchmarkPart.PRODUCTS: [product_points],
    BenchmarkPart.KERNELS: [kernel_points, attention_points, host_points],
    BenchmarkPart.COLLECTIVES: [collective_points, overlap_points],
    BenchmarkPart.LAYERS: [memory_points, layer_points],
    BenchmarkPart.ITERATIONS: [iteration_points],
}


@dataclass(frozen=True, slots=True)
class MeasurementSummary:
    """The ranks of a measurement, its numbers of old and of new records, and its data type.

    `left_out` counts the points that the time did not suffice for, by kind.
    """

    ranks: Ranks
    num_before: int
    num_added: int
    compute: str
    left_out: Mapping[str, int]


def measure(
    folder: Path,
    device: str,
    sizes: Sizes,
    parts: Collection[BenchmarkPart],
    minutes: float = math.inf,
    dtype: Compute | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> MeasurementSummary:
    """Measure the points whose records `folder` lacks, on "cuda" or "cpu".

    Then measure the doubtful ones again: the machine may have been busy for a moment. After
    `minutes` by the `clock` no further point begins; each part has its share of them. The
    data type is `dtype`, or bf16 on GPUs and fp32 on CPUs, most of which multiply bf16 slowly.

    Raises:
        InputError: E702, no GPU; E714, no NCCL; E715, another rank or torchrun died; E716, one
            process shall measure collectives only; or as `RecordFile`.
    """
    launcher = os.getppid()
    with joined(device) as ranks:
        if ranks.size == 1 and set(parts) == {BenchmarkPart.COLLECTIVES}:
            fix = "torchrun --nproc-per-node 2 -m calibrate measure -o DIR --only collectives"
            message = "collectives need two processes, and there is one"
            raise InputError.of("E716", message, fix=fix)
        start_s = clock()
        timer = Timer(device, sizes.budget_s, ranks)
        described = header(device, ranks, dtype or ("bf16" if device == "cuda" else "fp32"))
        file, begun, known = _open(folder, described, ranks)
        sizes = replace(sizes, compute=begun.compute)
        shares = [
            Share(
                _SHARES[part],
                [p for p in points_of([part], sizes, timer) if p.identity not in known],
            )
            for part in BenchmarkPart
            if part in parts
        ]
        missing = [point for share in shares for point in share.points]
        if ranks.is_first:
            print(_plan(missing, begun, minutes), file=sys.stderr, flush=True)

        def elapsed_s() -> float:
            return ranks.slowest([clock() - start_s])[0]

        recorder = _Recorder(ranks, file, launcher)
        limit_s = 60 * minutes
        with _progress() if ranks.is_first else nullcontext(lambda *_: None) as show:
            for point in in_time(shares, limit_s - elapsed_s(), elapsed_s):
                recorder.take(point, show, len(recorder.taken), len(missing))
            for _ in range(_MAX_REVISITS):
                again = recorder.doubted(missing)
                points = in_time([Share(1, again)], limit_s - elapsed_s(), elapsed_s)
                for number, point in enumerate(points):
                    recorder.take(point, show, number, len(again))
        taken = recorder.taken
        kinds = (p.kind.model_fields["kind"].default for p in missing if p.identity not in taken)
        return MeasurementSummary(ranks, len(known), len(taken), sizes.compute, Counter(kinds))


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Measures points and writes their records.

    Args:
        ranks: all ranks of the measurement.
        file: the records, on rank 0 alone.
        launcher: process that started this one.
        taken: identities of the points that were measured.
    """

    ranks: Ranks
    file: RecordFile | None
    launcher: int
    taken: set[str] = field(default_factory=set)

    def take(
        self, point: MeasurementPoint, show: Callable[[str, int, int], None], done: int, total: int
    ) -> None:
        show(point.kind.model_fields["kind"].default, done, total)
        record = point.record()
        check_launcher(self.launcher)
        if self.file is not None:
            self.file.write(record)
        self.taken.add(point.identity)

    def doubted(self, points: Sequence[MeasurementPoint]) -> list[MeasurementPoint]:
        doubted = set(map(identity, doubtful(self.file.records))) if self.file else set()
        doubted = self.ranks.from_first(doubted) & self.taken
        return [point for point in points if point.identity in doubted]


def _plan(missing: Sequence[MeasurementPoint], header: Header, minutes: float) -> str:
    """What is going to be measured, in which data type, and how long at most."""
    counts = Counter(point.kind.model_fields["kind"].default for point in missing)
    what = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    limit = "until all are measured" if math.isinf(minutes) else f"at most {minutes:g} minutes"
    load = header.conditions.get("load average")
    busy = f"; load average {load}" if load else ""
    records = f"{len(missing)} records ({what or 'none is missing'})"
    return f"measuring {records}, {limit}{busy}\ndata type: {header.compute}"


def points_of(
    parts: Collection[BenchmarkPart], sizes: Sizes, timer: Timer
) -> list[MeasurementPoint]:
    """All points of these parts, in order."""
    makers = [points for part in BenchmarkPart if part in parts for points in _PARTS[part]]
    return [point for points in makers for point in points(sizes, timer)]


def _open(
    folder: Path, described: Header, ranks: Ranks
) -> tuple[RecordFile | None, Header, set[str]]:
    """The file, on rank 0 alone; its header and the identities of its records, on all ranks.

    A measurement that continues keeps the data type that it began with.
    """
    file, failure = None, None
    if ranks.is_first:
        try:
            file = RecordFile(folder, described)
        except InputError as error:
            failure = error.problems
    opened = (file.header, file.known) if file else None
    opened, failure = ranks.from_first((opened, failure))
    if failure:
        raise InputError(failure)
    assert opened is not None, "rank 0 has a file unless it failed"
    return file, *opened


def header(device: str, ranks: Ranks, dtype: Compute = "bf16") -> Header:
    """Describe this machine, now."""
    on_cuda = device == "cuda"
    properties = torch.cuda.get_device_properties() if on_cuda else None
    queried = _nvidia_smi_while_computing() if on_cuda else {}
    driver = queried.pop("driver_version", None)
    software = {"torch": torch.__version__, "python": platform.python_version()}
    if on_cuda:
        software |= {"cuda": str(torch.version.cuda)} | ({"driver": driver} if driver else {})
        if torch.distributed.is_nccl_available():
            software["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Header(
        device=torch.cuda.get_device_name() if on_cuda else _cpu_name(),
        backend="none" if ranks.size == 1 else "nccl" if on_cuda else "gloo",
        num_ranks=ranks.size,
        num_nodes=ranks.num_nodes,
        num_sms=properties.multi_processor_count if properties else torch.get_num_threads(),
        memory_bytes=properties.total_memory if properties else host_bytes,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command(ranks),
        software=software,
        conditions=load_average() | queried,
        compute=dtype,
    )


def command(ranks: Ranks) -> str:
    """The command line that repeats this measurement; on several nodes it runs on each."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["calibrate"]:  # simtrain calibrate measure
        arguments = arguments[1:]
    program = "python -m calibrate"
    if ranks.size > 1:
        nodes = f"--nnodes {ranks.num_nodes} " if ranks.num_nodes > 1 else ""
        program = f"torchrun {nodes}--nproc-per-node {ranks.per_node} -m calibrate"
    return f"{program} {shlex.join(arguments)}".strip()


def _cpu_name() -> str:
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines() if _CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _nvidia_smi_while_computing() -> dict[str, str]:
    """The driver and clocks of this rank's GPU by nvidia-smi; empty if it cannot run.

    The GPU computes products, with more of them queued: idle clocks say nothing.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    operand = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end_s, count = time.perf_counter() + _WARM_UP_S, 0
    while time.perf_counter() < end_s:
        operand @ operand
        torch.cuda.synchronize()
        count += 1
    for _ in range(count):
        operand @ operand
    query = ("driver_version", *_CONDITIONS)
    identifier = f"GPU-{torch.cuda.get_device_properties().uuid}"
    options = [f"--query-gpu={','.join(query)}", "--format=csv,noheader", f"--id={identifier}"]
    done = subprocess.run([program, *options], capture_output=True, text=True, check=False)
    torch.cuda.synchronize()
    values = [value.strip() for value in done.stdout.split(",")]
    if done.returncode or len(values) != len(query):
        return {}
    return dict(zip(query, values, strict=True))


@dataclass(frozen=True, slots=True)
class Share:
    """The points of a part, most useful first, and its share of the time, relative to others."""

    weight: float
    points: Sequence[MeasurementPoint]


def in_time(
    shares: Sequence[Share], budget_s: float, clock: Callable[[], float]
) -> Iterator[MeasurementPoint]:
    """The points to measure, one after another, until `budget_s` are over by the `clock`.

    A part that needs less than its share leaves the rest to the parts after it. Points beyond a
    part's share come last, if there is time. A point that has begun is never interrupted.
    """
    deadline_s, late = clock() + budget_s, list[MeasurementPoint]()
    for number, share in enumerate(shares):
        now_s, weights = clock(), sum(each.weight for each in shares[number:])
        until_s = now_s + (deadline_s - now_s) * share.weight / weights
        points = iter(share.points)
        for point in points:
            if clock() >= until_s:
                late += [point, *points]
                break
            yield point
    for point in late:
        if clock() >= deadline_s:
            return
        yield point


def load_average() -> dict[str, str]:
    """The load of this machine in words; empty if the system does not say it."""
    try:
        running = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows
        return {}
    return {"load average": f"{running:.2f} of {os.cpu_count()} processors"}


def _progress() -> AbstractContextManager[Callable[..., None]]:
    """Return a progress bar; without a terminal, a line every few seconds."""
    if sys.stderr.isatty():
        return progress_bar()
    start_s = next_s = time.monotonic()

    def print_progress(phase: str, done: int, total: int) -> None:
        nonlocal next_s
        if (now_s := time.monotonic()) >= next_s:
            next_s = now_s + _LINE_EVERY_S
            print(f"{now_s - start_s:4.0f} s: {phase}, {done} of {total}", file=sys.stderr)

    return nullcontext(print_progress)
