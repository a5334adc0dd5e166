"""Published runs with activations on the host: Wan et al. 2025, PipeOffload (arXiv 2503.01328).

Table 2 and Figure 15, on A100-80GB; MFU in whole per cent. Activations are the peak minus the
memory at the start, in whole "GB" (taken as GiB, which fits all runs without offload).
"""

from typing import NamedTuple


class Model(NamedTuple):
    """A model of the paper, with its stages, chunks per stage and microbatches.

    Each chunk has one layer; the embedding and the loss take the place of a layer each.
    """

    layers: int
    heads: int
    hidden: int
    stages: int
    chunks: int
    microbatches: int


class Run(NamedTuple):
    """A run: schedule, and its figures; None if it ran out of memory."""

    model: str
    seq_length: int
    schedule: str
    mfu: float | None
    activations_gib: float | None


MODELS = {
    "10.5B": Model(38, 40, 5120, 8, 5, 64),
    "18.1B": Model(46, 48, 6144, 16, 3, 128),
    "42.9B": Model(62, 64, 8192, 32, 2, 256),
}
RUNS = (
    Run("10.5B", 4096, "1F1B-I", 0.65, 15),
    Run("10.5B", 4096, "1F1B", 0.57, 12),
    Run("10.5B", 8192, "GIS", 0.68, 27),
    Run("10.5B", 8192, "GIS-H", 0.65, 16),
    Run("10.5B", 8192, "PO-H", 0.61, 6),
    Run("10.5B", 16384, "1F1B-I", None, None),
    Run("10.5B", 16384, "GIS", None, None),
    Run("10.5B", 16384, "GIS-H", 0.68, 32),
    Run("10.5B", 16384, "1F1B", 0.62, 48),
    Run("10.5B", 32768, "1F1B-I", None, None),
    Run("10.5B", 32768, "GIS", None, None),
    Run("10.5B", 32768, "PO-H", 0.65, 24),
    Run("10.5B", 32768, "PO-F", 0.64, 14),
    Run("18.1B", 4096, "1F1B-I", 0.64, 24),
    Run("18.1B", 4096, "GIS", 0.65, 19),
    Run("18.1B", 4096, "GIS-H", 0.63, 13),
    Run("18.1B", 4096, "PO-H", 0.59, 4),
    Run("18.1B", 4096, "1F1B", 0.56, 18),
    Run("18.1B", 8192, "1F1B-I", 0.66, 49),
    Run("18.1B", 8192, "PO-H", 0.62, 8),
    Run("18.1B", 16384, "GIS", None, None),
    Run("18.1B", 16384, "PO-H", 0.64, 15),
    Run("18.1B", 16384, "1F1B", None, None),
    Run("18.1B", 32768, "1F1B-I", None, None),
    Run("18.1B", 32768, "PO-F", 0.65, 15),
    Run("18.1B", 32768, "1F1B", None, None),
    Run("42.9B", 4096, "GIS", 0.65, 34),
    Run("42.9B", 4096, "PO-F", 0.58, 5),
    Run("42.9B", 8192, "PO-F", 0.60, 8),
    Run("42.9B", 8192, "1F1B", None, None),
    Run("42.9B", 16384, "GIS", None, None),
    Run("42.9B", 16384, "GIS-H", None, None),
    Run("42.9B", 32768, "1F1B-I", None, None),
    Run("42.9B", 32768, "GIS-H", None, None),
)
