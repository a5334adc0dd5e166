"""Wrong command lines: typer's message with a code of ours, and what to write instead.

Contexts, parameters and errors are typer's. They are `Any` here: typer has no public names for
their types.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from simtrain.errors import InputError, Location, did_you_mean

_CODES = {
    "NoSuchOption": "E902",
    "MissingParameter": "E903",
    "BadParameter": "E904",
    "UsageError": "E906",  # an argument too many
    "BadOptionUsage": "E907",
}
"""The code of each class of typer's errors."""


@cache
def moved() -> dict[str, dict[str, str]]:
    """Return what replaces former commands and options, by their names."""
    return tomllib.loads(Path(__file__).with_name("moved.toml").read_text("utf-8"))


def is_usage_error(error: Exception) -> bool:
    """Whether typer raised the error because of the command line: other errors have no `ctx`."""
    return hasattr(error, "ctx")


def usage_error(context: Any, words: Sequence[str], error: Any) -> InputError:
    """Return typer's error about the words after a command as an error of simtrain.

    Raises:
        InputError: another word is at fault: a former option (E902).
    """
    _refuse_former_options(context, words)
    if words and (former := former_command(context.command_path, words[0])):
        return former
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    fix = _example(context)
    option = getattr(error, "option_name", "")
    param = getattr(error, "param", None)
    choices = param.type_descriptor.choices if param else ()
    name = option or (param.opts[0] if param and param.param_type_name == "option" else "")
    if hasattr(error, "possibilities"):
        similar = get_close_matches(option, error.possibilities or (), n=1, cutoff=0.75)
        setting = "" if similar == ["--gpus"] else _setting_of(option)
        fix = f"did you mean {similar[0]}?" if similar else fix
        if setting and "--set" in {name for each in context.command.params for name in each.opts}:
            fix = f"{setting.partition('=')[0]} is a field of the scenario: --set {setting}"
    elif choices and (written := re.search("'([^']*)' is not one of", message)):
        names = [str(getattr(choice, "value", choice)) for choice in choices]
        fix = did_you_mean(written[1], names).rstrip() or fix
    elif "--set" in words and (value := re.search(r"\((\S+)\)$", message)):
        fix = f"a field and its value are one word: --set FIELD={value[1]}; otherwise remove it"
    place = Location(f"{context.command_path} {name}".rstrip())
    return InputError.of(_CODES[type(error).__name__], message, place, fix)


def former_command(command: str, word: str) -> InputError | None:
    """Return the error of a word after a command that was a command once, or None."""
    former = " ".join([*command.split()[1:], word])
    if former not in moved()["commands"]:
        return None
    message = f'there is no command "{word}" any more'
    return InputError.of("E901", message, Location(command), moved()["commands"][former])


def unknown_command(context: Any, words: Sequence[str]) -> InputError:
    """Return the error of a first word that is no command of a group, nor what `show` completes."""
    from simtrain.base.resources import list_scenarios

    (name, *rest), commands = words, context.command.list_commands(context)
    line, place = shlex.join(rest), Location(context.command_path)
    if error := former_command(context.command_path, name):
        return error
    message = f'there is no command "{name}"; the commands are {", ".join(commands)}'
    meant = {"help": f"{line} --help".lstrip(), "version": "--version"}.get(name, "")
    show = None if context.parent else context.command.get_command(context, "show")
    shipped = [item.value for item in show.params[0].shell_complete(context, "")] if show else []
    similar = get_close_matches(name, [*commands, *shipped], n=1)
    if similar and not meant:
        is_shown = similar[0] not in (*commands, *list_scenarios())
        meant = " ".join(["show"] * is_shown + [*similar, *rest])
    fix = f"did you mean {context.command_path} {meant}?" if meant else _example(context)
    return InputError.of("E901", message, place, fix)


def check_words(context: Any, words: Sequence[str]) -> None:
    """Refuse what typer accepts: an empty word, and an option that is given twice.

    Raises:
        InputError: a former option (E902), an empty word, as from an unset variable in
            `-o "$FOLDER"` (E904), or an option whose first value would be lost (E905).
    """
    _refuse_former_options(context, words)
    for before, word in pairwise(["", *words]):
        name, equals, value = word.partition("=")
        if not word or (name.startswith("--") and equals and not value):
            place = name or (before if before.startswith("-") else "ARGUMENT")
            message = 'is empty; write a value (for a path, "." is the current folder)'
            location = Location(f"{context.command_path} {place}")
            raise InputError.of("E904", message, location, _example(context))
    _, _, order = context.command.make_parser(context).parse_args([*words])
    for param in {id(each): each for each in order}.values():
        is_option = param.param_type_name == "option" and not param.multiple
        if is_option and order.count(param) > 1:
            twice = Location(f"{context.command_path} {param.opts[0]}")
            raise InputError.of("E905", "is given twice", twice, "keep one")


def _refuse_former_options(context: Any, words: Sequence[str]) -> None:
    """Refuse an option that another one replaces, before "--"; a script's words may follow it."""
    options = moved()["options"]
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if name in options and not hasattr(context.command, "commands"):
            place = Location(f"{context.command_path} {name}")
            message = f"there is no option {name} any more"
            raise InputError.of("E902", message, place, f"write {options[name]}")


def _example(context: Any) -> str:
    example = re.search("Example: (.*)", context.command.help or "")
    return f"for example: {example[1]}" if example else f"{context.command_path} --help"


def _setting_of(option: str) -> str:
    """Return what --set takes for an option such as --tp: "parallelism.tensor=8"; "" for none."""
    from simtrain.base.strict_yaml.validation import example, names_of
    from simtrain.scenario import Scenario

    name = option.lstrip("-").replace("-", "_")
    fields = names_of(Scenario, name)
    words = fields[0] if len(fields) == 1 else Scenario.other_names().get(name, "")
    # "memory.zero_stage: 3", "hardware.cluster.num_nodes, the nodes of the cluster"
    match = re.match(r"(?!remove)([a-z_.]+)(?:: (\w+)$)?", words)
    if match is None:
        return ""
    field, value = match.groups()
    return f"{field}={value or example(Scenario, tuple(field.split('.'))) or 'VALUE'}"
