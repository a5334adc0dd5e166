"""Wrong command lines: what is wrong, what is allowed, and what to write instead.

typer parses every command line. If it refuses one, or accepts a fault, the first fault becomes an
error of simtrain, whose remedy repairs that fault: by the nearest name or value, by the field of a
scenario, by the command that has the option, or by the example in the command's help.

Contexts, parameters and errors are typer's. They are `Any` here: typer has no public names for
their types.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from simtrain.commands.completion import shipped_scenarios
from simtrain.errors import InputError, Location

_KINDS = {int: "an integer", float: "a number", Path: "a path", str: "text"}
_MOST_OTHERS = 2
"""An option of more commands than this does not say which of them is meant."""
_NEAR = 0.75
"""Words that differ by more than a letter or two are no misspellings."""


def is_usage_error(error: Exception) -> bool:
    """Whether typer raised the error because of the command line: other errors have no `ctx`."""
    return hasattr(error, "ctx")


def check_usage(context: Any, words: Sequence[str], error: Any = None) -> None:
    """Refuse words that typer refused with an error, and some that it accepts.

    Args:
        context: typer's context of the command or group.
        words: what follows the name of the command.
        error: typer's error, if it refused the words.

    Raises:
        InputError: the first fault (E901 to E907).
    """
    if hasattr(error, "option_name"):
        raise _wrong_option(context, words, error.option_name)
    values, surplus, order = context.command.make_parser(context).parse_args([*words])
    if error is None:
        if commands := _commands_of(context):
            if not surplus or surplus[0] not in commands:
                raise _unknown_command(context, surplus)
            return
        _refuse_empty(context, words)
        for param in {id(each): each for each in order}.values():
            if _is_option(param) and not param.multiple and order.count(param) > 1:
                raise _error(context, "E905", _name(param), "is given twice", "keep one")
        return
    param = getattr(error, "param", None)
    if param is None:
        raise _surplus(context, words, surplus[0])
    value = values.get(param.name)
    if value is None or value == ():
        params = context.command.get_params(context)
        missing = [_name(each) for each in params if each.required and not values.get(each.name)]
        *most, last = missing
        message = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        raise _error(context, "E903", "", f"{message} missing", _example(context))
    texts = [value] if isinstance(value, str) else [*value]
    text = next((each for each in texts if each in error.message), texts[0])
    similar = difflib.get_close_matches(text, _choices(param), n=1)
    fix = f"did you mean {similar[0]}?" if similar else _example(context, param)
    raise _error(context, "E904", _name(param), f'"{text}" is not {_allowed(param)}', fix)


def _error(context: Any, code: str, place: str, message: str, fix: str) -> InputError:
    place = f"{context.command_path} {place}".rstrip()
    return InputError.of(code, message, Location(place), fix)


def _line(context: Any, words: Sequence[str]) -> str:
    return f"{context.command_path} {shlex.join(words)}"


def _example(context: Any, param: Any = None) -> str:
    """Return an example with a parameter: of a choice, or from the command's help."""
    if param is not None and _is_option(param) and (choices := _choices(param)):
        return f"for example: {param.opts[0]} {choices[0]}"
    texts = (context.command.help or "").split("Example: ")[1:]
    examples = [text.partition("\n")[0] for text in texts]
    if param is not None and _is_option(param):
        examples = [each for each in examples if {*param.opts} & {*each.split()}]
    return f"for example: {examples[0]}" if examples else _line(context, ["--help"])


def _unknown_command(context: Any, words: Sequence[str]) -> InputError:
    """Return the error of a first word that is no command of a group."""
    commands = [*_commands_of(context)]
    name, rest = (words[0], words[1:]) if words else ("", [])
    message = "there is no such command" if words else "the command is missing"
    if similar := difflib.get_close_matches(name, commands, n=1):
        fix = f"did you mean {similar[0]}? {_line(context, [similar[0], *rest])}"
    elif "run" in commands and (name.endswith(".yaml") or name in shipped_scenarios(name)):
        fix = f"did you mean to run {name}? {_line(context, ['run', *words])}"
    else:
        message += f"; the commands are {', '.join(commands)}"
        fix = _line(context, ["--help"])
    return _error(context, "E901", name, message, fix)


def _wrong_option(context: Any, words: Sequence[str], name: str) -> InputError:
    """Return the error of an option that does not exist, or has a value too many or too few."""
    options = _options_of(context.command.get_params(context))
    index = next((i for i, word in enumerate(words) if _has_option(word, name)), len(words) - 1)
    word, _, value = words[index].partition("=")
    param = options.get(name)
    if param is not None and param.is_flag:
        value = next(each for each in words if each.startswith(f"{name}=")).partition("=")[2]
        message = f'is given the value "{value}", but takes none'
        return _error(context, "E907", name, message, f"write {name} alone")
    if param is not None:
        instead = "" if param.required else ", or leave it out"
        message = f"has no value: write {_allowed(param)}{instead}"
        return _error(context, "E907", name, message, _example(context, param))
    message, after = "there is no such option", "".join(words[index + 1 : index + 2])
    text = value or ("" if after.startswith("-") else after)
    others = _commands_of(context.parent) if context.parent else {}
    having = [each for each in others if word in _options_of(others[each].params)]
    similar = difflib.get_close_matches(word, options, n=1, cutoff=_NEAR)
    # A number of --gpu is one of GPUs; a name would be that of the cluster.
    is_field = "--set" in options and not (word == "--gpu" and text.isdecimal())
    if is_field and (setting := _setting_of(word)):
        field, example = setting
        fix = f"{field} is a field of the scenario: --set {field}={text or example}"
    elif 0 < len(having) <= _MOST_OTHERS:
        fix = f"{having[0]} has {word}: {_line(context.parent, [having[0], '--help'])}"
    elif similar:
        line = [*words[:index], similar[0] + words[index][len(word) :], *words[index + 1 :]]
        fix = f"did you mean {similar[0]}? {_line(context, line)}"
    else:
        message += f"; the options are {', '.join(options)}"
        fix = f"remove it, or see {_line(context, ['--help'])}"
    return _error(context, "E902", word, message, fix)


def _surplus(context: Any, words: Sequence[str], word: str) -> InputError:
    """Return the error of an argument too many, such as the value of --set batch.micro 2."""
    for option, field, value in zip(words, words[1:], words[2:], strict=False):
        if option == "--set" and "=" not in field and value == word:
            message = f"a field and its value are one word: {field}={value}"
            return _error(context, "E906", option, message, f"--set {field}={value}")
    arguments = [each for each in context.command.get_params(context) if not _is_option(each)]
    allowed = " ".join(map(_name, arguments)) or "none"
    message = f'unexpected argument "{word}"; the arguments are: {allowed}'
    return _error(context, "E906", "", message, "remove it, or quote an argument that has spaces")


def _refuse_empty(context: Any, words: Sequence[str]) -> None:
    """Refuse an empty word, which users write with an unset variable: `--out "$FOLDER"`.

    Raises:
        InputError: an empty word; an empty path would be the current folder (E904).
    """
    for before, word in pairwise(["", *words]):
        name, equals, value = word.partition("=")
        if not word or (name.startswith("--") and equals and not value):
            place = name or (before if before.startswith("-") else "ARGUMENT")
            message = 'is empty; write a value (for a path, "." is the current folder)'
            raise _error(context, "E904", place, message, _example(context))


def _setting_of(option: str) -> tuple[str, str] | None:
    """Return the field of a scenario that an option such as --tp names, and an example value."""
    from simtrain.base.strict_yaml.model_fields import example, names_of
    from simtrain.scenario import Scenario
    from simtrain.scenario.other_names import SCENARIO_NAMES

    name = option.lstrip("-").replace("-", "_")
    fields = names_of(Scenario, name)
    words = fields[0] if len(fields) == 1 else SCENARIO_NAMES.get(name, "")
    # "memory.zero_stage: 3", "hardware.cluster.num_nodes, the nodes of the cluster"
    match = re.match(r"(?!remove)([a-z_.]+)(?:: (\w+)$)?", words)
    if match is None:
        return None
    field, value = match.groups()
    return field, value or example(Scenario, tuple(field.split("."))) or "VALUE"


def _has_option(word: str, option: str) -> bool:
    """Whether a word has this option: --option, --option=value, or -o among the letters of -po."""
    is_cluster = word.startswith("-") and not word.startswith("--") and len(option) == 2
    return word.partition("=")[0] == option or (is_cluster and option[1] in word)


def _allowed(param: Any) -> str:
    """Describe the values of a parameter: "one of auto, simpy", "an integer of at least 1"."""
    if choices := _choices(param):
        return f"one of {', '.join(choices)}"
    type_ = param.type_descriptor.annotation
    kind = _KINDS[next(iter(get_args(type_)), type_)]
    return kind if param.min is None else f"{kind} of at least {param.min}"


def _choices(param: Any) -> list[str]:
    return [str(getattr(choice, "value", choice)) for choice in param.type_descriptor.choices or ()]


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _name(param: Any) -> str:
    """Return the name of an option, or the metavar of an argument."""
    return str(param.opts[0] if _is_option(param) else param.metavar or param.name.upper())


def _options_of(params: Sequence[Any]) -> dict[str, Any]:
    """Return the options among parameters by all their names."""
    options = [param for param in params if _is_option(param)]
    return {
        name: param
        for param in options
        # click has the names of --help in the random order of a set.
        for name in sorted((*param.opts, *param.secondary_opts), key=len)
    }


def _commands_of(context: Any) -> Mapping[str, Any]:
    """Return the commands of a group by name; a command has none."""
    commands: Mapping[str, Any] = getattr(context.command, "commands", {})
    return commands
