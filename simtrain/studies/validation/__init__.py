"""Hold predictions against measured runs: errors, and their classes."""

from simtrain.studies.validation.result import (
    CLOSE,
    MOST_MEAN_ERROR,
    ErrorClass,
    Errors,
    ValidatedRun,
    Validation,
    error_classes,
    errors_text,
)
from simtrain.studies.validation.run import validate_runs

__all__ = [
    "CLOSE",
    "MOST_MEAN_ERROR",
    "ErrorClass",
    "Errors",
    "ValidatedRun",
    "Validation",
    "error_classes",
    "errors_text",
    "validate_runs",
]
