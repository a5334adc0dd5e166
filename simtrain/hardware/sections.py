"""Sections of a hardware profile: memory-bound kernels, dispatchers, variation, reliability.

A profile without variation takes that of h100_sxm (`simtrain run --draws`), and one without
reliability that of another one (`simtrain.cost(reliability=...)`).
"""

from typing import Annotated

from pydantic import Field

from simtrain.base.entry import Count, Entry, Fraction, NonNegative, Positive, Strict
from simtrain.base.quantities import BytesPerSecond, NonNegativeSeconds, Seconds
from simtrain.scenario.variation_section import MOST_PAUSES


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
    kernels: NamedKernels = NamedKernels.model_construct()


class DispatchKernels(Strict):
    """A library whose kernels exchange tokens, such as DeepEP.

    Both efficiencies count all bytes that the exchange moves, own tokens of a rank or node too, as
    the libraries' tables do.

    num_sms: multiprocessors that the kernels occupy.
    row_share: share of the time of a row of 7,168 channels in bf16 that a row takes on NVLink
        whatever its bytes; by default 0. At this size the kernels reach `node_efficiency`.
    node_efficiency: reached fraction of a GPU's NVLink, one way.
    network_efficiency: reached fraction of a GPU's share of the adapters, one way.
    """

    num_sms: Entry[Count]
    node_efficiency: Entry[Fraction]
    network_efficiency: Entry[Fraction]
    row_share: Entry[Fraction] | None = None


class Dispatchers(Strict):
    """Bandwidths that the kernels of dispatchers reach; one without an entry cannot be chosen."""

    deepep: DispatchKernels | None = None
    hybridep: DispatchKernels | None = None


Relative = Annotated[float, Field(ge=0, le=0.3)]


class PauseEntries(Strict):
    """Rare pauses of single GPUs.

    Args:
        per_gpu_hour: pauses per GPU and hour of computing.
        duration: mean duration; durations are exponential.
    """

    per_gpu_hour: Entry[Annotated[float, Field(ge=0, le=MOST_PAUSES)]]
    duration: Entry[NonNegativeSeconds]


class VariationEntries(Strict):
    """Standard deviations of durations, relative to their means, and pauses.

    Args:
        kernels: of the kernels of a pass, which a tensor-parallel group runs together.
        collectives: of the time of transfers and collectives.
        gpu_spread: of the time of kernels between such groups.
        pauses: rare pauses of single GPUs.
    """

    kernels: Entry[Relative]
    collectives: Entry[Relative]
    gpu_spread: Entry[Relative]
    pauses: PauseEntries


class Failures(Strict):
    """Failures of one kind, which stop a training.

    Args:
        per_gpu_day: failures per GPU and day.
        detection: time until the training is known to have failed.
        diagnosis: time until the node that has to leave is known.
        repair: mean time until a node that left is back among the spares; without it, failures of
            this kind keep their nodes.
    """

    per_gpu_day: Entry[NonNegative]
    detection: Entry[NonNegativeSeconds]
    diagnosis: Entry[NonNegativeSeconds]
    repair: Entry[Seconds] | None = None


class PlannedStops(Strict):
    """Interruptions for which a checkpoint is written first, such as maintenance."""

    per_gpu_day: Entry[NonNegative]


class SilentCorruption(Strict):
    """Wrong results of a GPU, which are found late.

    Args:
        per_gpu_day: corruptions per GPU and day.
        discovery: mean time until one is found; the training then goes back to the last checkpoint
            before it.
        repair: mean time until the node is back among the spares.
    """

    per_gpu_day: Entry[NonNegative]
    discovery: Entry[Seconds]
    repair: Entry[Seconds]


class Checkpoints(Strict):
    """What checkpoints of a training take.

    Args:
        bytes_per_parameter: bytes of a checkpoint for each parameter of the model.
        snapshot: time for which an asynchronous checkpoint stops the training.
        write_bandwidth, read_bandwidth: of the storage, for the whole training.
    """

    bytes_per_parameter: Entry[Positive]
    snapshot: Entry[NonNegativeSeconds]
    write_bandwidth: Entry[BytesPerSecond]
    read_bandwidth: Entry[BytesPerSecond]


class Restart(Strict):
    """What a training does between the end of a diagnosis and its next iteration, but for loading.

    Args:
        process_groups: start of the processes and their groups.
        warm_up: the additional time of the first iterations.
    """

    process_groups: Entry[NonNegativeSeconds]
    warm_up: Entry[NonNegativeSeconds]


class Reliability(Strict):
    """Failures of a cluster by kind, and the times that recovery takes.

    Args:
        gpu: GPUs, their memory and links inside a node.
        network: adapters, cables and switches.
        host: everything else in a node.
        software: the program itself; nodes stay.
        planned: interruptions that are planned.
        silent_corruption: wrong results; without it, none.
        restart: starting again.
        checkpoints: what checkpoints take.
    """

    gpu: Failures
    network: Failures
    host: Failures
    software: Failures
    planned: PlannedStops
    silent_corruption: SilentCorruption | None = None
    restart: Restart
    checkpoints: Checkpoints
