"""The section of a hardware profile on memory-bound kernels."""

from __future__ import annotations

from simtrain.entry import Entry, Strict
from simtrain.units import BytesPerSecond, NonNegativeSeconds


class KernelBandwidths(Strict):
    """What one kernel reaches, forward and backward."""

    forward: Entry[BytesPerSecond] | None = None
    backward: Entry[BytesPerSecond] | None = None


class NamedKernels(Strict):
    """Bandwidths of single kernels, for the bytes that each must read and write.

    softmax, dropout: of attention scores, without fused attention. A causal softmax reads half of
        its scores; dropout has a mask of one byte a number.
    layer_norm, rms_norm, rotary: each array once.
    swiglu: a fused activation with a gate, as swiglu and geglu are.
    cross_entropy: the kernels of a loss that is not fused, together.
    cast: to fp8.
    """

    softmax: KernelBandwidths | None = None
    dropout: KernelBandwidths | None = None
    layer_norm: KernelBandwidths | None = None
    rms_norm: KernelBandwidths | None = None
    swiglu: KernelBandwidths | None = None
    rotary: KernelBandwidths | None = None
    cross_entropy: KernelBandwidths | None = None
    cast: KernelBandwidths | None = None


class MemoryBound(Strict):
    """Bandwidths that memory-bound kernels reach, and what each kernel takes beside.

    A kernel that `kernels` does not have runs at `fused_bandwidth`, a cast or a plain pass over
    parameters and gradients at `stream_bandwidth`.
    """

    fused_bandwidth: Entry[BytesPerSecond]
    stream_bandwidth: Entry[BytesPerSecond]
    kernel_latency: Entry[NonNegativeSeconds]
    kernels: NamedKernels = NamedKernels()
