"""Names that other rooms still import from here."""

from simtrain.iteration.report.result import evidence_for, predicted_interval, run_kind

__all__ = ["evidence_for", "predicted_interval", "run_kind"]
