"""The header of a measurement: this machine, its software and its clocks."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from calibrate.benchmarks.ranks import Ranks
from calibrate.records.schema import Header
from simtrain.system import physical_memory_bytes

_WARM_UP_S = 0.5
_CPU_INFO = Path("/proc/cpuinfo")
_CONDITIONS = (
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "temperature.gpu",
    "power.draw",
    "power.limit",
)


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
