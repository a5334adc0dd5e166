"""Measures a machine point by point; points whose record exists are not measured again."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from calibrate.benchmarks.collectives import collective_points, overlap_points
from calibrate.benchmarks.iterations import iteration_points
from calibrate.benchmarks.kernels import attention_points, host_points, kernel_points
from calibrate.benchmarks.layers import layer_points, memory_points
from calibrate.benchmarks.products import product_points
from calibrate.benchmarks.ranks import Ranks, check_launcher, joined
from calibrate.benchmarks.sizes import Part, Sizes
from calibrate.benchmarks.timing import Timer
from calibrate.records.file import Point, RecordFile, identity
from calibrate.records.schema import Header, doubtful
from simtrain.commands.progress import progress_bar
from simtrain.errors import InputError
from simtrain.system import physical_memory_bytes

_MAX_REVISITS = 3
"""Times that doubtful points are measured again: a machine may be busy all the time."""
_WARM_UP_S = 0.5
_CPU_INFO = Path("/proc/cpuinfo")
_CONDITIONS = (
    *("clocks.sm", "clocks.mem", "clocks.max.sm"),
    *("temperature.gpu", "power.draw", "power.limit"),
)
_PARTS: dict[Part, Sequence[Callable[[Sizes, Timer], list[Point]]]] = {
    Part.PRODUCTS: [product_points],
    Part.KERNELS: [kernel_points, attention_points, host_points],
    Part.COLLECTIVES: [collective_points, overlap_points],
    Part.LAYERS: [memory_points, layer_points],
    Part.ITERATIONS: [iteration_points],
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The ranks of a measurement, and its numbers of old and of new records."""

    ranks: Ranks
    num_before: int
    num_added: int


def measure(folder: Path, device: str, sizes: Sizes, parts: Collection[Part]) -> Measured:
    """Measure the points whose records `folder` lacks, on "cuda" or "cpu".

    Then measure the doubtful ones again: the machine may have been busy for a moment.

    Raises:
        InputError: E702, no GPU; E714, no NCCL; E715, another rank or torchrun died; E716, one
            process shall measure collectives only; or as `RecordFile`.
    """
    launcher = os.getppid()
    with joined(device) as ranks:
        if ranks.size == 1 and set(parts) == {Part.COLLECTIVES}:
            fix = "torchrun --nproc-per-node 2 -m calibrate measure --out DIR --only collectives"
            message = "collectives need two processes, and there is one"
            raise InputError.of("E716", message, fix=fix)
        file, known = _open(folder, device, ranks)
        points = points_of(parts, sizes, Timer(device, sizes.budget_s, ranks))
        missing = [point for point in points if point.identity not in known]
        with progress_bar() if ranks.is_first else nullcontext(lambda *_: None) as show:
            todo = missing
            for _ in range(1 + _MAX_REVISITS):
                for number, point in enumerate(todo):
                    show(point.kind.model_fields["kind"].default, number, len(todo))
                    record = point.record()
                    check_launcher(launcher)
                    if file is not None:
                        file.write(record)
                doubted = set(map(identity, doubtful(file.records))) if file else set()
                doubted = ranks.from_first(doubted)
                todo = [point for point in missing if point.identity in doubted]
        return Measured(ranks, len(known), len(missing))


def points_of(parts: Collection[Part], sizes: Sizes, timer: Timer) -> list[Point]:
    """All points of these parts, in order."""
    makers = [points for part in Part if part in parts for points in _PARTS[part]]
    return [point for points in makers for point in points(sizes, timer)]


def _open(folder: Path, device: str, ranks: Ranks) -> tuple[RecordFile | None, set[str]]:
    """The file, on rank 0 alone, and the identities of its records, on all ranks."""
    file, failure = None, None
    if ranks.is_first:
        try:
            file = RecordFile(folder, header(device, ranks))
        except InputError as error:
            failure = error.problems
    known, failure = ranks.from_first((file.known if file else set(), failure))
    if failure:
        raise InputError(failure)
    return file, known


def header(device: str, ranks: Ranks) -> Header:
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
    return Header(
        device=torch.cuda.get_device_name() if on_cuda else _cpu_name(),
        backend="none" if ranks.size == 1 else "nccl" if on_cuda else "gloo",
        num_ranks=ranks.size,
        num_nodes=ranks.num_nodes,
        num_sms=properties.multi_processor_count if properties else torch.get_num_threads(),
        memory_bytes=properties.total_memory if properties else physical_memory_bytes(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command(ranks),
        software=software,
        conditions=queried,
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
