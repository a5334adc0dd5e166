"""Strict YAML: load a file, override fields, validate with pydantic, and locate every error.

This package is independent of scenarios and hardware profiles: the model class is a parameter.
"""

from simtrain.base.input_file import read_text as read_text
from simtrain.base.strict_yaml.reading import *  # noqa: F403 (all public names)
from simtrain.base.strict_yaml.validation import *  # noqa: F403
