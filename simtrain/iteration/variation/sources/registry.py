"""All sources of variation, in the order in which reports name them."""

from __future__ import annotations

from simtrain.iteration.variation.sources.between import Evaluation, LoadedData, Logging
from simtrain.iteration.variation.sources.documents import UnevenDocuments
from simtrain.iteration.variation.sources.garbage import GarbageCollections
from simtrain.iteration.variation.sources.gpus import GpuSpread, SlowPart
from simtrain.iteration.variation.sources.jitter import CollectiveJitter, KernelJitter
from simtrain.iteration.variation.sources.pauses import RarePauses
from simtrain.iteration.variation.sources.source import SourceOf

SOURCES: tuple[SourceOf, ...] = (
    KernelJitter.of,
    CollectiveJitter.of,
    GpuSpread.of,
    RarePauses.of,
    SlowPart.of,
    UnevenDocuments.of,
    GarbageCollections.of,
    LoadedData.of,
    Evaluation.of,
    Logging.of,
)
"""Their order decides the random numbers of each: new sources go to the end."""
