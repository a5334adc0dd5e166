"""Strict YAML: load a file, override fields, validate with pydantic, and locate every error.

This package is independent of scenarios and hardware profiles: the model class is a parameter.
"""

from simtrain.base.input_file import read_text
from simtrain.base.strict_yaml.document import (
    Path,
    Positions,
    YamlDocument,
    as_scalar,
    document_with,
    leaves,
    overlay,
    paths_in,
    section,
    with_value,
)
from simtrain.base.strict_yaml.model_fields import data_of
from simtrain.base.strict_yaml.overrides import apply_overrides, path_of
from simtrain.base.strict_yaml.reading import load_document, parse_document
from simtrain.base.strict_yaml.validation import FieldError, input_error, validate

__all__ = [
    "FieldError",
    "Path",
    "Positions",
    "YamlDocument",
    "apply_overrides",
    "as_scalar",
    "data_of",
    "document_with",
    "input_error",
    "leaves",
    "load_document",
    "overlay",
    "parse_document",
    "path_of",
    "paths_in",
    "read_text",
    "section",
    "validate",
    "with_value",
]
