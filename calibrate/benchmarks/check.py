"""A self-test of a machine before it is measured: what torch sees, and a time of each kind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial

import torch
import torch.distributed as dist

from calibrate.benchmarks.conditions import mean_running
from calibrate.benchmarks.measure import header
from calibrate.benchmarks.products import product_runs
from calibrate.benchmarks.ranks import Ranks, joined
from calibrate.benchmarks.self_test import Finding, SelfTest
from calibrate.benchmarks.timing import Timer, random_data
from calibrate.records.device_names import describes
from calibrate.records.schema import GemmWork
from simtrain.base.mesh import Group
from simtrain.base.resources import list_profiles
from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.units import format_seconds
from simtrain.workload.work import Collective, CollectiveKind, Elementwise, Gemm, Work

SLOW = 1.25
"""A time above so many times the profile's is off: more than a card differs from another."""
LOW_CLOCK = 0.85
"""A clock under load below this share of the highest one is throttled."""
BUSY = 0.5
"""More running processes than this share of the processors are other work."""
_BUDGET_S = 0.5
_SIDE = {"cuda": 8192, "cpu": 1024}
_ARRAY_BYTES = {"cuda": 256 << 20, "cpu": 16 << 20}


def check_machine(device: str) -> tuple[Ranks, SelfTest]:
    """Check the machine that this process, or those of torchrun, run on.

    Raises:
        InputError: E702, E714, E715, as `measure`.
    """
    with joined(device) as ranks:
        machine = header(device, ranks)
        names = [name for name in list_profiles() if describes(name, machine.device)]
        profile = names[0] if device == "cuda" and names else None
        model = DurationModel(load_profile(profile)) if profile else None
        timer = Timer(device, _BUDGET_S, ranks)
        findings = (
            *_software(device, machine.software),
            *load_findings(mean_running(), os.cpu_count() or 1),
            *(process_findings(_gpu_processes(), ranks.per_node) if device == "cuda" else ()),
            *(_gpus(ranks) if device == "cuda" else ()),
            *clock_findings(machine.conditions),
            *_times(timer, model),
        )
        return ranks, SelfTest(machine.device, profile, findings)


def _software(device: str, software: Mapping[str, str]) -> Iterator[Finding]:
    words = ", ".join(f"{name} {version}" for name, version in software.items())
    has_device = device == "cuda" or not torch.version.cuda
    advice = "torch is built for CUDA but sees no GPU: check the driver and CUDA_VISIBLE_DEVICES"
    yield Finding("software", words, is_ok=has_device or None, advice=advice)


def load_findings(running: float | None, num_processors: int) -> Iterator[Finding]:
    """Compare the mean number of running processes with the processors; None says nothing."""
    if running is None:
        return
    most = BUSY * num_processors
    yield Finding(
        "load average",
        f"{running:.2f} of {num_processors} processors",
        f"at most {most:g}",
        running <= most,
        "other work slows measurements: top shows it. Stop it, or wait for its end, and check "
        "again after a minute, over which the system averages",
    )


def process_findings(listed: str | None, num_own: int) -> Iterator[Finding]:
    """Compare the processes on this node's GPUs, a line each, with those of this check.

    None and an empty list say nothing: in a container, nvidia-smi may see no processes.
    """
    if not listed:
        return
    others = max(0, len(listed.splitlines()) - num_own)
    yield Finding(
        "other processes on GPUs",
        f"{others}",
        "none",
        others == 0,
        "they slow measurements: nvidia-smi lists them. Stop them, or choose free GPUs with "
        "CUDA_VISIBLE_DEVICES",
    )


def _gpu_processes() -> str | None:
    """What nvidia-smi lists as processes on the GPUs that this process may use."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    gpus = [
        f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())
    ]
    options = ["--query-compute-apps=pid", "--format=csv,noheader", f"--id={','.join(gpus)}"]
    done = subprocess.run([program, *options], capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


def _gpus(ranks: Ranks) -> Iterator[Finding]:
    """Compare the node's GPUs with each other, and their access to each other's memory."""
    number = torch.cuda.device_count()
    names = {torch.cuda.get_device_name(gpu) for gpu in range(number)}
    yield Finding(
        "GPUs of this node",
        f"{number} of {' and '.join(sorted(names))}",
        "one kind",
        len(names) == 1,
        "measure one kind at a time: set CUDA_VISIBLE_DEVICES",
    )
    if ranks.per_node < number:
        yield Finding(
            "GPUs measured",
            f"{ranks.per_node} of {number}",
            f"{number}",
            advice=f"torchrun --nproc-per-node {number} -m calibrate check",
        )
    without = [
        f"{a} to {b}"
        for a in range(number)
        for b in range(number)
        if a != b and not torch.cuda.can_device_access_peer(a, b)
    ]
    if number > 1:
        yield Finding(
            "peer access",
            f"missing from {', '.join(without)}" if without else "between all GPUs",
            "between all GPUs",
            not without,
            "NCCL goes through the host's memory: nvidia-smi topo -m shows the links; check "
            "nvidia-fabricmanager, and ACS and IOMMU in the BIOS",
        )


def clock_findings(conditions: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the clock under load with the highest one, as nvidia-smi printed them."""
    try:
        clock, highest = (
            float(conditions[name].split()[0]) for name in ("clocks.sm", "clocks.max.sm")
        )
    except (KeyError, IndexError, ValueError):  # no nvidia-smi, or "[N/A]"
        return
    power = " at ".join(conditions.get(name, "?") for name in ("power.draw", "temperature.gpu"))
    yield Finding(
        "clock under load",
        f"{clock:.0f} MHz ({power} °C)",
        f"at least {LOW_CLOCK * highest:.0f} of {highest:.0f} MHz",
        clock >= LOW_CLOCK * highest,
        "the GPU is throttled or capped: nvidia-smi -q -d PERFORMANCE,POWER,CLOCK says why",
    )


def time_finding(name: str, measured_s: float, expected_s: float | None, advice: str) -> Finding:
    """Compare a time with the profile's."""
    if expected_s is None:
        return Finding(name, format_seconds(measured_s))
    limit = f"{format_seconds(expected_s)}, at most {SLOW:g} times that"
    return Finding(name, format_seconds(measured_s), limit, measured_s <= SLOW * expected_s, advice)


def _times(timer: Timer, model: DurationModel | None) -> Iterator[Finding]:
    """Time a product, a copy and, with several processes, an all-reduce of all of them."""

    def expected_s(work: Work) -> float | None:
        return model.seconds(work) if model else None

    device, ranks = timer.device, timer.ranks
    side, num_bytes = _SIDE[device], _ARRAY_BYTES[device]
    work = GemmWork(m=side, n=side, k=side, dtype="bf16" if device == "cuda" else "fp32")
    product_s = timer.time(product_runs(work, timer)).median_s
    yield time_finding(
        f"a product of {side}³ in {work.dtype}",
        product_s,
        expected_s(Gemm(side, side, side)),
        "other processes, a power cap or a debug build of torch slow products: nvidia-smi shows "
        "processes and power",
    )
    data = random_data(device, torch.bfloat16).take(num_bytes // 2)
    copy = torch.empty_like(data)
    copy_s = timer.time([partial(copy.copy_, data)]).median_s
    yield time_finding(
        f"a copy of {num_bytes >> 20} MiB",
        copy_s,
        expected_s(Elementwise(num_bytes, num_bytes)),
        "memory is shared with another process, or ECC pages are retired: nvidia-smi -q -d ECC",
    )
    if ranks.size == 1:
        fix = "torchrun --nproc-per-node N -m calibrate check"
        yield Finding("an all-reduce", "one process has none", advice=fix)
        return
    reduce_s = timer.time([partial(dist.all_reduce, data.clone())]).median_s
    group = Group(("dp",), ranks.size, ranks.per_node)
    yield time_finding(
        f"an all-reduce of {num_bytes >> 20} MiB over {ranks.size} ranks",
        reduce_s,
        expected_s(Collective(CollectiveKind.ALL_REDUCE, num_bytes, group)),
        "NCCL may not use NVLink or all adapters: run again with NCCL_DEBUG=INFO and look for "
        "P2P, NVLS and NET/IB",
    )
