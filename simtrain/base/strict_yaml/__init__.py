"""Strict YAML: load a file, override fields, validate with pydantic, and locate every error.

This package is independent of scenarios and hardware profiles: the model class is a parameter.
"""

from simtrain.base.input_file import read_text
from simtrain.base.strict_yaml.reading import (
    Path,
    Place,
    Positions,
    YamlDocument,
    apply_overrides,
    as_scalar,
    dotted,
    leaves,
    load_document,
    overlay,
    parse_document,
    parse_value,
    path_of,
    paths_in,
    section,
    with_value,
    yaml_text,
)
from simtrain.base.strict_yaml.validation import (
    FieldError,
    as_written,
    data_of,
    input_error,
    validate,
)

__all__ = [
    "FieldError",
    "Path",
    "Place",
    "Positions",
    "YamlDocument",
    "apply_overrides",
    "as_scalar",
    "as_written",
    "data_of",
    "dotted",
    "input_error",
    "leaves",
    "load_document",
    "overlay",
    "parse_document",
    "parse_value",
    "path_of",
    "paths_in",
    "read_text",
    "section",
    "validate",
    "with_value",
    "yaml_text",
]
