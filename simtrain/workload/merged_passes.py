"""Names that other rooms still import from here."""

from simtrain.workload.record import MergedPass, MergedRecord, issue_order, record_merged, record_of

__all__ = ["MergedPass", "MergedRecord", "issue_order", "record_merged", "record_of"]
