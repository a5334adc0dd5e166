"""Names that other rooms still import from here."""

from simtrain.workload.optimizer import bucket_ops, buckets_of

__all__ = ["bucket_ops", "buckets_of"]
