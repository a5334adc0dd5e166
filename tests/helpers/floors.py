"""No op is faster than its FLOPs at the peak rate, or its bytes at the bandwidth of memory."""

from itertools import chain

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.report.result import Result
from simtrain.workload.passes import record_of
from simtrain.workload.work import Elementwise, FusedAttention, Gemm, GroupedGemm, Work


def floor_s(work: Work, profile: HardwareProfile) -> float:
    """Return the time of the FLOPs and bytes of a work on a chip without losses."""
    bytes_per_s = profile.gpu.memory_bandwidth.value
    match work:
        case GroupedGemm():
            return work.batch * floor_s(work.product, profile)
        case Gemm():
            flops_per_s = profile.peak_flops(work.dtype)
            flops_s = work.flops / flops_per_s if flops_per_s else 0
            return max(flops_s, work.moved_bytes / bytes_per_s)
        case FusedAttention():
            flops_s = work.flops / profile.gpu.peak_flops.value
            return max(flops_s, work.moved_bytes / bytes_per_s)
        case Elementwise():
            return work.moved_bytes / bytes_per_s
    return 0


def assert_no_op_is_below_its_floor(result: Result) -> None:
    """Check each different op of an iteration, alone."""
    passes = (record_of(pass_).ops for pass_, _ in result.plan.different_passes())
    steps = (ops for step in result.plan.steps for ops in step.values())
    for op in chain(*passes, *steps):
        seconds = result.seconds.machine.model.seconds(op.work)
        assert seconds >= floor_s(op.work, result.profile) * (1 - 1e-12), op


def assert_mfu_is_hfu_at_most_unless_masked(result: Result) -> None:
    """Check that only masks make the FLOPs of the model more than those of its kernels."""
    recorded = result.plan.recorded
    is_masked = result.scenario.attention_backend == "fused"
    if recorded:
        runs = chain(*recorded.program.passes.values())
        is_masked = any(op.options.get("is_causal") for run in runs for op in run.ops)
    assert is_masked or result.mfu <= result.hfu
