"""Hold predictions against measured runs: errors, their classes, and who may account for them."""

from simtrain.studies.validation.result import CLOSE, ErrorClass, Errors, ValidatedRun, Validation
from simtrain.studies.validation.run import validate_runs

__all__ = ["CLOSE", "ErrorClass", "Errors", "ValidatedRun", "Validation", "validate_runs"]
