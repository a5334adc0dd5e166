"""Strict YAML: load a file, override fields, validate with pydantic, and point at every error.

Nothing here knows what a scenario or a hardware profile is: the model class is a parameter.
"""

from simtrain.strict_yaml.document import Document, Path, Positions, overlay, section
from simtrain.strict_yaml.overrides import apply_overrides
from simtrain.strict_yaml.reading import load_document, parse_document
from simtrain.strict_yaml.validation import FieldError, validate

__all__ = [
    "Document",
    "FieldError",
    "Path",
    "Positions",
    "apply_overrides",
    "load_document",
    "overlay",
    "parse_document",
    "section",
    "validate",
]
