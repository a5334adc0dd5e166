"""Hold predictions against measured runs: errors, their classes, and who may account for them."""

from simtrain.studies.validation.classes import error_classes, errors_text
from simtrain.studies.validation.result import (
    CLOSE,
    MOST_MEAN_ERROR,
    ErrorClass,
    Errors,
    Prediction,
    ValidatedRun,
    Validation,
)
from simtrain.studies.validation.run import validate_runs

__all__ = [
    "CLOSE",
    "MOST_MEAN_ERROR",
    "ErrorClass",
    "Errors",
    "Prediction",
    "ValidatedRun",
    "Validation",
    "error_classes",
    "errors_text",
    "validate_runs",
]
