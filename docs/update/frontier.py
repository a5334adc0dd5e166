"""Trainings of frontier models, simulated and as their reports state, for docs/related_work.md."""

import functools
from dataclasses import replace
from statistics import median

import numpy as np

from docs.update.published.frontier import (
    DEEPGEMM_PRODUCTS,
    DEEPSEEK_V3_GPU_HOURS,
    DEEPSEEK_V3_PAIR_COMPUTES_MS,
    DEEPSEEK_V3_PAIR_HIDDEN,
    DEEPSEEK_V3_PAIR_MS,
    DEEPSEEK_V3_PAIR_TAKES_MS,
    LLAMA_MFU,
    NEMOTRON_H_FLOPS,
    NEMOTRON_H_S,
    NEMOTRON_S,
)
from docs.update.request import Request, compared, percent, signed_percent, table
from docs.update.simulations import run_of, scenario_of
from simtrain.durations.model import GemmMachine, gemm_seconds
from simtrain.hardware.load import load_profile
from simtrain.iteration.report.stage_kernels import passes_of
from simtrain.studies.simulation import simulate
from simtrain.traces.study import RankKernels, overlap_of, simulated_kernels
from simtrain.workload.work import Gemm

_PAIR, _PASS = "deepseek_v3_pair.yaml", "(2F2;2B1)OVERLAP_F_B"


def _gpu_hours(words: tuple[str, ...]) -> float:
    gpus, rate = scenario_of(words).num_gpus, run_of(words).tokens_per_s
    return gpus * 1e12 / rate / 3600


def gpu_hours(request: Request) -> str:
    """Return GPU-hours per trillion tokens: `gpu_hours SCENARIO ...`."""
    return f"{_gpu_hours(tuple(request.words)):,.0f}"


def gpu_hours_error(request: Request) -> str:
    """Return their error against DeepSeek-V3's report: `gpu_hours_error SCENARIO ...`."""
    return signed_percent(_gpu_hours(tuple(request.words)) / DEEPSEEK_V3_GPU_HOURS - 1)


def cutlass_share(request: Request) -> str:
    """Return the median rate of DeepSeek's CUTLASS kernels over that of `h800_sxm`."""
    machine = GemmMachine.of(load_profile("h800_sxm"), "fp8_block")
    shares = []
    for m, n, k, deepgemm_tflops, speedup in DEEPGEMM_PRODUCTS:
        product = Gemm(m, n, k, element_bytes=1, dtype="fp8_block")
        ours = product.flops / gemm_seconds(product, machine)
        shares.append(1e12 * deepgemm_tflops / speedup / ours)
    return f"{median(shares):.2f}"


@functools.cache
def _pair() -> RankKernels:
    result = simulate(scenario_of((_PAIR,)))
    kernels, (begin_s, end_s) = simulated_kernels(result, 0), passes_of(result, 0)[_PASS]
    inside = ~np.isnan(kernels.launched_s) & (kernels.start_s >= begin_s) & (kernels.end_s <= end_s)
    shifts = dict.fromkeys(("work", "op"), 0) | dict.fromkeys(("start_s", "end_s"), begin_s)
    arrays = {name: getattr(kernels, name)[inside] - shift for name, shift in shifts.items()}
    return replace(kernels, **arrays, iteration_s=end_s - begin_s)


def expert_pair(request: Request) -> str:
    """Return the table of the pair of passes of DeepSeek-V3's layers."""
    kernels, overlap = _pair(), overlap_of(_pair())
    rows = []
    for name, published_ms in DEEPSEEK_V3_PAIR_MS.items():
        (kind,) = (one for one in kernels.kinds if one.name == name)
        ours_ms = 1e3 * float(kernels.seconds[kernels.of_kind(kind)].sum())
        rows.append([kind.label, *compared(published_ms, ours_ms, "ms")])
    computes_ms, takes_ms = 1e3 * overlap.compute_s, 1e3 * kernels.iteration_s
    computes = compared(DEEPSEEK_V3_PAIR_COMPUTES_MS, computes_ms, "ms")
    pair = compared(DEEPSEEK_V3_PAIR_TAKES_MS, takes_ms, "ms")
    rows += [["a kernel computes", *computes], ["the pair", *pair]]
    shares = percent(DEEPSEEK_V3_PAIR_HIDDEN), percent(overlap.hidden_share)
    points = f"{100 * (overlap.hidden_share - DEEPSEEK_V3_PAIR_HIDDEN):+.1f} points"
    rows.append(["communication beside compute", *shares, points.replace("-", "−")])
    return table(["sum of", "published", "simulated", "error"], rows)


def llama_mfu(request: Request) -> str:
    """Return the table of Llama 3 405B's MFU."""
    rows = []
    for words, (label, published) in LLAMA_MFU.items():
        run = run_of(words)
        shares = (f"{published:.0%}".replace("%", " %"), percent(run.mfu), percent(run.hfu))
        rows.append([label, *shares])
    return table(["run", "MFU, published", "MFU, simulated", "HFU, simulated"], rows)


def nemotron_times(request: Request) -> str:
    """Return the table of Nemotron-4 340B's iterations."""
    rows = []
    for words, (label, published_s, published_mfu) in NEMOTRON_S.items():
        times = compared(published_s, run_of(words).iteration_time_s, "s")
        rows.append([label, *times, percent(published_mfu), percent(run_of(words).mfu)])
    head = "run", "published", "simulated", "error", "MFU, published", "MFU, simulated"
    return table([*head], rows)


def hybrid_times(request: Request) -> str:
    """Return the table of Nemotron-H 56B's iterations: `hybrid_times SCENARIO ...`."""
    rows = []
    for gpus, published_s in NEMOTRON_H_S.items():
        replicas = gpus // 8
        sizes = f"parallelism.data={replicas}", f"batch.global={24 * replicas}"
        words = (*request.words, *sizes, f"hardware.cluster.num_nodes={replicas}")
        seconds = run_of(words).iteration_time_s
        rows.append([f"{gpus:,} GPUs", *compared(published_s, seconds, "s")])
    return table(["run", "published", "simulated", "error"], rows)


def hybrid_flops(request: Request) -> str:
    """Return the error of the FLOPs of a sequence of Nemotron-H: `hybrid_flops SCENARIO ...`."""
    result = simulate(scenario_of(tuple(request.words)))
    flops = result.model_flops / result.scenario.batch.global_
    return signed_percent(flops / NEMOTRON_H_FLOPS - 1)
