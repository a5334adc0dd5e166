"""Read the configs of Megatron-LM's functional tests: YAML with arguments as keys of MODEL_ARGS.

Source: tests/functional_tests/shell_test_utils/_run_training.sh of Megatron-LM, which puts the
variables of ENV_VARS in the values and evaluates the rest as words of bash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from simtrain.base.strict_yaml import as_scalar, parse_document
from simtrain.errors import InputError, Location
from simtrain.importing.shell.script_reader import Environment, words_of
from simtrain.importing.shell.syntax import Lines
from simtrain.importing.shell.values import Argument

_ARGUMENTS, _VARIABLES = "MODEL_ARGS", "ENV_VARS"
_IN_BRACKETS = re.compile(r"\[([^]]+)\]")


def words_of_config(text: str, lines: Lines, environment: Environment) -> Iterator[Argument]:
    """Yield the words of the arguments: each flag, and its value unless that is true.

    Args:
        text: the config.
        lines: its lines.
        environment: values of variables that the config does not have.

    Raises:
        InputError: the text is no YAML, or MODEL_ARGS has no arguments (E875).
    """
    document = parse_document(text, lines.file)
    variables = document.data.get(_VARIABLES)
    known = {
        str(name): as_scalar(value)
        for name, value in (variables if isinstance(variables, dict) else {}).items()
        if "$" not in as_scalar(value)
    }
    environment = replace(environment, answers={**known, **environment.answers})
    arguments = document.data.get(_ARGUMENTS)
    if not isinstance(arguments, dict):
        section = document.positions.of_key((_ARGUMENTS,)) or Location(lines.file)
        fix = "write arguments as keys: --num-layers: 12"
        raise InputError.of("E875", f"{_ARGUMENTS} has no arguments", section, fix)
    for flag, value in arguments.items():
        place = document.positions.of_key((_ARGUMENTS, flag))
        offset = _offset(place, lines) if place else 0
        yield Argument(str(flag), offset)
        if value is not True and value is not None:
            yield _value(value, offset, lines.file, environment)


def _value(value: object, offset: int, file: str, environment: Environment) -> Argument:
    """Return the value of an argument as one word; a list and a text in brackets are several."""
    if isinstance(value, bool):
        return Argument(str(value), offset)
    text = " ".join(map(as_scalar, value)) if isinstance(value, list) else as_scalar(value)
    brackets = _IN_BRACKETS.fullmatch(text.strip())
    text = brackets[1] if brackets else text
    words = words_of(text, Lines(text, file), environment)
    unknown = next((word for word in words if word.unknown), Argument("", offset))
    written = " ".join(word.text for word in words)
    return replace(unknown, text=written, offset=offset, may_be_arguments=False)


def _offset(place: Location, lines: Lines) -> int:
    return lines.starts[(place.line or 1) - 1] + (place.column or 1) - 1
