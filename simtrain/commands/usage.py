"""Wrong command lines: what is wrong, what is allowed, and a command line that works.

typer parses every command line. If it refuses one, the first fault becomes an error of simtrain,
and each round repairs one fault: a name by the nearest one, a value by the nearest choice or by
the example in the help, or by leaving it out. When typer accepts the words, they are the remedy;
when a round finds no repair, it is the help of the command.

Commands, contexts, parameters and errors are typer's. They are `Any` here: typer has no public
names for their types.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import typer

from simtrain.commands.completion import shipped_scenarios
from simtrain.errors import InputError, Location

_MAX_ROUNDS = 20
_KINDS = {int: "an integer", float: "a number", Path: "a path", str: "text"}
_MOST_OTHERS = 2
"""An option of more commands than this does not say which of them is meant."""
_NEAR = 0.75
"""Words that differ by more than a letter or two are no misspellings."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault of a command line.

    Args:
        code: code of the error.
        place: the wrong option, argument or command; empty for all of the command line.
        message: what is wrong.
        repaired: the words without this fault, which may have others.
        advice: beginning of the remedy; a command line that works follows.
        command: another command of the group, for which `repaired` is meant.
    """

    code: str
    place: str
    message: str
    repaired: list[str]
    advice: str = ""
    command: str = ""


def is_usage_error(error: Exception) -> bool:
    """Whether typer raised the error because of the command line: other errors have no `ctx`."""
    return hasattr(error, "ctx")


@dataclass
class Usage:
    """How a command, or a group of commands, may be used. `context` is typer's of this use."""

    command: Any
    context: Any

    @classmethod
    def of(cls, command: Any, name: str | None, parent: Any) -> Usage:
        """Return how a command may be used inside its group, whose context is `parent`."""
        settings = command.context_settings
        return cls(command, typer.Context(command, info_name=name, parent=parent, **settings))

    def check(self, words: Sequence[str], error: Exception | None = None) -> None:
        """Refuse words that typer refused with an error, and some that it accepts.

        Raises:
            InputError: the first fault, with a command line without any fault (E901 to E907).
        """
        fault = self._refused(words, error) if error else self._accepted(words)
        if fault is None:
            return
        path = self.context.command_path
        place = Location(f"{path} {fault.place}".rstrip())
        usage, repaired = self, fault.repaired
        if fault.command:
            usage = Usage(self.context.parent.command, self.context.parent)
            path, repaired = self.context.parent.command_path, [fault.command, *repaired]
        line = f"{path} {shlex.join(usage._repaired(repaired))}".rstrip()
        raise InputError.of(fault.code, fault.message, place, fault.advice + line)

    def _repaired(self, words: list[str]) -> list[str]:
        """Repair words, also those of a group's command. Ask for help if that is impossible."""
        for _ in range(_MAX_ROUNDS):
            fault = self._fault(words)
            if fault is None:
                name, *rest = words or [""]
                inner = self._commands.get(name)
                if inner is None:
                    return words
                return [name, *Usage.of(inner, name, self.context)._repaired(rest)]
            words = fault.repaired
        return ["--help"]

    def _fault(self, words: Sequence[str]) -> _Fault | None:
        """Return the first fault of words, which may cause others, or None."""
        if self._commands and not words:  # typer prints a group's help by raising an error
            return self._unknown_command(words)
        trial = Usage.of(self.command, self.context.info_name, self.context.parent)
        try:
            # --help, --version and --install-completion ignore everything else.
            if any(param.is_eager or not param.expose_value for param in self._parse(words)[2]):
                return None
            self.command.parse_args(trial.context, [*words])
        except Exception as error:
            if not is_usage_error(error):
                raise
            return self._refused(words, error)
        return self._accepted(words)

    def _refused(self, words: Sequence[str], error: Any) -> _Fault:
        """Return the fault for which typer raised an error."""
        if hasattr(error, "option_name"):
            return self._wrong_option(words, error.option_name)
        values, surplus, _ = self._parse(words)
        param = getattr(error, "param", None)
        if param is None:
            return self._surplus(words, values, surplus[0])
        for text in _as_list(values.get(param.name)):
            if not self._is_legal(param, text):
                message = f'"{text}" is not {_allowed(param)}'
                return _Fault("E904", _name(param), message, self._legal_words(values))
        *most, last = [_name(each) for each in self._params if self._is_missing(each, values)]
        message = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        return _Fault("E903", "", f"{message} missing", self._legal_words(values))

    def _accepted(self, words: Sequence[str]) -> _Fault | None:
        """Return the first fault that typer does not see, or None."""
        values, surplus, order = self._parse(words)
        if self._commands:
            return self._unknown_command(surplus)
        if fault := _empty_word(words):
            return fault
        for param in self._params:
            if _is_option(param) and not param.multiple and order.count(param) > 1:
                repaired = self._legal_words(values)
                return _Fault("E905", _name(param), "is given twice", repaired, "keep one: ")
        return None

    def _surplus(self, words: Sequence[str], values: Mapping[str, Any], word: str) -> _Fault:
        """Return the fault of an argument too many, such as the value of --set batch.micro 2."""
        for index, option in enumerate(words[:-2]):
            field, value = words[index + 1 : index + 3]
            if option == "--set" and "=" not in field and value == word:
                setting = f"{field}={value}"
                message = f"a field and its value are one word: {setting}"
                repaired = [*words[:index], option, setting, *words[index + 3 :]]
                return _Fault("E906", option, message, repaired)
        allowed = " ".join(_name(param) for param in self._params if not _is_option(param))
        message = f'unexpected argument "{word}"; the arguments are: {allowed or "none"}'
        advice = "remove it, or quote an argument that has spaces: "
        return _Fault("E906", "", message, self._legal_words(values), advice)

    def _wrong_option(self, words: Sequence[str], name: str) -> _Fault:
        """Return the fault of an option that does not exist, or has a value too many or too few."""
        options = _option_names(self._params)
        param = options.get(name)
        if param is None:
            return self._unknown_option(words, name, [*options])
        if param.is_flag:
            index = next(i for i, word in enumerate(words) if word.startswith(f"{name}="))
            message = f'is given the value "{words[index][len(name) + 1 :]}", but takes none'
            return _Fault("E907", name, message, [*words[:index], name, *words[index + 1 :]])
        instead = "" if param.required else ", or leave it out"
        message = f"has no value: write {_allowed(param)}{instead}"
        example = _as_list(self._examples.get(param.name))[:1]
        return _Fault("E907", name, message, [*words[:-1], *([name, *example] * len(example))])

    def _unknown_option(self, words: Sequence[str], name: str, options: Sequence[str]) -> _Fault:
        """Return the fault of an option that does not exist.

        It is a field of the scenario, an option of another command, misspelt, or unknown.
        """
        message = "there is no such option"
        index = next(i for i, word in enumerate(words) if _begins_with(word, name))
        word, equals, value = words[index].partition("=")
        before, after = words[:index], words[index + 1 :]
        has_value = not equals and bool(after) and not after[0].startswith("-")
        text, rest = (after[0], after[1:]) if has_value else (value, after)
        # A number of --gpu is one of GPUs; a name would be that of the cluster.
        is_field = "--set" in options and not (word == "--gpu" and text.isdecimal())
        if is_field and (setting := _setting_of(word)):
            field, example = setting
            repaired = [*before, "--set", f"{field}={text or example}", *rest]
            return _Fault("E902", word, message, repaired, f"{field} is a field of the scenario: ")
        if command := self._other_command(word):
            return _Fault("E902", word, message, [*words], f"{command} has {word}: ", command)
        if similar := difflib.get_close_matches(word, options, n=1, cutoff=_NEAR):
            repaired = [*before, similar[0] + equals + value, *after]
            return _Fault("E902", word, message, repaired, f"did you mean {similar[0]}? ")
        message += f"; the options are {', '.join(options)}"
        # The word after it is its value, unless the command needs that word.
        fault = self._fault([*before, *rest])
        if not has_value or (fault and fault.code in ("E901", "E903")):
            return _Fault("E902", word, message, [*before, *after], "remove it: ")
        return _Fault("E902", word, message, [*before, *rest], "remove it and its value: ")

    def _other_command(self, option: str) -> str:
        """Return a command of the group that has an option which few commands have, or ""."""
        others = _commands_of(self.context.parent and self.context.parent.command)
        having = [name for name in others if option in _option_names(others[name].params)]
        return having[0] if 0 < len(having) <= _MOST_OTHERS else ""

    def _unknown_command(self, words: Sequence[str]) -> _Fault | None:
        """Return a fault if the first word is no command of the group."""
        commands = self._commands
        name, rest = (words[0], words[1:]) if words else ("", [])
        if name in commands:
            return None
        message = "there is no such command" if words else "the command is missing"
        if similar := difflib.get_close_matches(name, commands, n=1):
            advice = f"did you mean {similar[0]}? "
            return _Fault("E901", name, message, [similar[0], *rest], advice)
        if "run" in commands and (name.endswith(".yaml") or name in shipped_scenarios(name)):
            return _Fault("E901", name, message, ["run", *words], f"did you mean to run {name}? ")
        message += f"; the commands are {', '.join(commands)}"
        return _Fault("E901", name, message, ["--help"])

    def _is_legal(self, param: Any, text: str) -> bool:
        is_list = param.multiple if _is_option(param) else param.nargs == -1
        try:
            param.process_value(self.context, [text] if is_list else text)
        except typer.BadParameter:
            return False
        return True

    def _is_missing(self, param: Any, values: Mapping[str, Any]) -> bool:
        return bool(param.required) and not values.get(param.name)

    def _nearest(self, param: Any, value: str) -> list[str]:
        """Return the nearest legal value to a wrong one, or the value of an example, or none."""
        if choices := _choices(param):
            return difflib.get_close_matches(value, choices, n=1, cutoff=0)
        return _as_list(self._examples.get(param.name))[:1]

    def _legal_words(self, values: Mapping[str, Any]) -> list[str]:
        """Write a command line with the nearest legal values: first arguments, then options."""
        arguments: list[str] = []
        options: list[str] = []
        for param in self._params:
            texts = _as_list(values.get(param.name))
            if self._is_missing(param, values):
                texts = _as_list(self._examples.get(param.name))
            for text in texts:
                is_right = isinstance(text, bool) or self._is_legal(param, text)
                for legal in [text] if is_right else self._nearest(param, text):
                    if not _is_option(param):
                        arguments.append(legal)
                    elif isinstance(legal, bool):
                        options.append((param.opts if legal else param.secondary_opts)[0])
                    else:
                        options += [param.opts[0], legal]
        return arguments + options

    def _parse(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str], list[Any]]:
        """Return the values by parameter, the words left over, and the parameters in order."""
        values, surplus, order = self.command.make_parser(self.context).parse_args([*words])
        return values, surplus, order

    @cached_property
    def _params(self) -> list[Any]:
        return [*self.command.get_params(self.context)]

    @cached_property
    def _commands(self) -> Mapping[str, Any]:
        return _commands_of(self.command)

    @cached_property
    def _examples(self) -> dict[str, Any]:
        """Values of parameters in the examples of the command's help."""
        values: dict[str, Any] = {}
        for text in self.command.help.split("Example: ")[1:]:
            words = shlex.split(text.partition("\n")[0])
            example = self._parse(words[words.index(self.context.info_name) + 1 :])[0]
            values = {name: value for name, value in example.items() if value is not None} | values
        return values


def _setting_of(option: str) -> tuple[str, str] | None:
    """Return the field of a scenario that an option such as --tp names, and an example value."""
    from simtrain.base.strict_yaml.model_fields import example, names_of
    from simtrain.scenario import Scenario
    from simtrain.scenario.other_names import SCENARIO_NAMES

    name = option.lstrip("-").replace("-", "_")
    fields = names_of(Scenario, name)
    words = fields[0] if len(fields) == 1 else SCENARIO_NAMES.get(name, "")
    # "memory.zero_stage: 3", "hardware.cluster.num_nodes, the nodes of the cluster"
    match = re.match(r"([a-z_.]+)(?:: (\w+)$)?", words)
    if match is None or words.startswith("remove"):
        return None
    field, value = match.groups()
    return field, value or example(Scenario, tuple(field.split("."))) or "VALUE"


def _empty_word(words: Sequence[str]) -> _Fault | None:
    """Return the fault of the first empty word.

    An empty path would be the current folder. Users write it with an unset variable of the shell:
    `--out "$FOLDER"`.
    """
    for index, (before, word) in enumerate(pairwise(["", *words])):
        name, equals, value = word.partition("=")
        if word and not (name.startswith("--") and equals and not value):
            continue
        is_value = not word and before.startswith("-")
        message = 'is empty; write a value (for a path, "." is the current folder)'
        rest = [*words[: index - is_value], *words[index + 1 :]]
        return _Fault("E904", name or (before if is_value else "ARGUMENT"), message, rest)
    return None


def _begins_with(word: str, option: str) -> bool:
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


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _name(param: Any) -> str:
    """Return the name of an option, or the metavar of an argument."""
    return str(param.opts[0] if _is_option(param) else param.metavar or param.name.upper())


def _option_names(params: Iterable[Any]) -> dict[str, Any]:
    """Return the options among parameters by all their names."""
    options = [param for param in params if _is_option(param)]
    return {
        name: param
        for param in options
        # click has the names of --help in the random order of a set.
        for name in sorted((*param.opts, *param.secondary_opts), key=len)
    }


def _commands_of(group: Any) -> Mapping[str, Any]:
    """Return the commands of a group by name; a command has none."""
    commands: Mapping[str, Any] = getattr(group, "commands", {})
    return commands
