"""Section `memory_bound` of a hardware profile: bandwidths of memory-bound kernels."""

from __future__ import annotations

from simtrain.base.entry import Entry, Strict
from simtrain.units import BytesPerSecond, NonNegativeSeconds


class KernelBandwidths(Strict):
    """Bandwidth that one kernel reaches, forward and backward."""

    forward: Entry[BytesPerSecond] | None = None
    backward: Entry[BytesPerSecond] | None = None


class NamedKernels(Strict):
    """Bandwidths of individual kernels, relative to the bytes that each must read and write.

    softmax, dropout: on attention scores, without fused attention. A causal softmax reads half of
        the scores; dropout's mask has one byte per element.
    layer_norm, rms_norm, rotary: each array is read or written once.
    swiglu: a fused gated activation (swiglu, geglu).
    cross_entropy: all kernels of an unfused loss together.
    cast: casts to fp8.
    chunk_scan: all kernels of Mamba-2's scan together; backward as forward by default.
    """

    softmax: KernelBandwidths | None = None
    dropout: KernelBandwidths | None = None
    layer_norm: KernelBandwidths | None = None
    rms_norm: KernelBandwidths | None = None
    swiglu: KernelBandwidths | None = None
    rotary: KernelBandwidths | None = None
    cross_entropy: KernelBandwidths | None = None
    cast: KernelBandwidths | None = None
    chunk_scan: KernelBandwidths | None = None


class MemoryBound(Strict):
    """Bandwidths of memory-bound kernels, and the latency that every kernel adds.

    A kernel without an entry in `kernels` runs at `fused_bandwidth`; casts and plain passes over
    parameters or gradients run at `stream_bandwidth`.
    """

    fused_bandwidth: Entry[BytesPerSecond]
    stream_bandwidth: Entry[BytesPerSecond]
    kernel_latency: Entry[NonNegativeSeconds]
    kernels: NamedKernels = NamedKernels()
