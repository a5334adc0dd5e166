"""The kernels of torch's `F.cross_entropy`: a log-softmax and a look-up of the labels.

Sources: pytorch, aten/src/ATen/native/cuda/SoftMax.cu (`cunn_SoftMaxForward`,
`cunn_SoftMaxForwardSmem`, `cunn_SoftMaxBackward`) and Loss.cu
(`nll_loss_forward_reduce_cuda_kernel_2d`, `nll_loss_backward_out_cuda`). A block of threads
computes one row. It reads the row for the maximum, for the sum of exponentials and for the result.
If the row fits into shared memory or if all rows in flight fit into the L2 cache, HBM sees the
first pass alone.
"""

from __future__ import annotations

from simtrain.workload.work import Elementwise, KernelFamily

_CACHED_ROW_BYTES = 190 << 10
"""Longest row of which all in flight fit into the L2 cache: two blocks of 1024 threads run on each
SM, so that 40 MiB of an A100 have 216 rows, and 50 MiB of an H100 264 rows."""
_SECTOR_BYTES = 32
"""The least that a GPU reads from HBM."""


def _is_cached(row_bytes: float) -> bool:
    return row_bytes <= _CACHED_ROW_BYTES


def log_softmax_work(rows: int, row_bytes: int) -> Elementwise:
    """Return the log-softmax of rows: three passes that read, one of which writes."""
    size, passes = rows * row_bytes, 1 if _is_cached(row_bytes) else 3
    return Elementwise(passes * size, size, KernelFamily.CROSS_ENTROPY)


def log_softmax_gradient_work(rows: int, row_bytes: int) -> Elementwise:
    """Return the gradient: two passes over the gradient, one over the log-probabilities."""
    size, passes = rows * row_bytes, 2 if _is_cached(row_bytes) else 3
    return Elementwise(passes * size, size, KernelFamily.CROSS_ENTROPY, is_backward=True)


def label_loss_work(rows: int, label_bytes: int) -> Elementwise:
    """Return the mean of the labels' log-probabilities: it reads one number of each row."""
    return Elementwise(rows * (_SECTOR_BYTES + label_bytes), 0)


def label_gradient_work(rows: int, row_bytes: int, label_bytes: int) -> Elementwise:
    """Return the gradient of that mean: it writes zeros, and a number to each row."""
    written = rows * (row_bytes + _SECTOR_BYTES)
    return Elementwise(rows * label_bytes, written, KernelFamily.STREAM, is_backward=True)
