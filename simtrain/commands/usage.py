"""Wrong command lines: what is wrong, what is allowed, and the nearest command line that works.

typer parses every command line. When it refuses one, its error says where: `param` is the parameter
with a wrong or missing value, `option_name` the option that is wrong itself. Its words are replaced
by an error of simtrain with a command line that typer accepts.

Commands, contexts, parameters and errors are typer's. They are `Any` here: typer has no public
names for their types.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, EnumType
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import typer

from simtrain.commands.shared import shipped_scenarios
from simtrain.errors import InputError, Location

_MAX_REPAIRS = 20
_KINDS = {int: "an integer", float: "a number", Path: "a path", str: "text"}
# Options that users write with other commands, and the commands that have them.
_ELSEWHERE = {
    "--gpus": ("search", "plan"),
    "--top": ("search",),
    **dict.fromkeys(("--days", "--budget", "--price"), ("plan",)),
    **dict.fromkeys(("--tokens", "--goodput"), ("cost",)),
    **dict.fromkeys(("--ops", "--trace"), ("run",)),
    "--change": ("compare",),
}


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault of a command line.

    Args:
        code: code of the error.
        place: the wrong option, argument or command; empty for all of the command line.
        message: what is wrong.
        repaired: the words without this fault. They may have other faults.
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

    def error(self, words: Sequence[str], error: Exception) -> InputError:
        """Return the error of simtrain for words that typer refused with `error`."""
        return self._with_advice(self._fault_of(words, error))

    def check(self, words: Sequence[str]) -> None:
        """Refuse words that typer accepts: empty ones, options given twice, an unknown command.

        Raises:
            InputError: the first fault, with a command line without any fault (E901, E904, E905).
        """
        if fault := self._unseen_fault(words):
            raise self._with_advice(fault)

    def _with_advice(self, fault: _Fault) -> InputError:
        """Return the error of a fault, with a command line without any fault."""
        path = self.context.command_path
        if fault.command:
            group = Usage(self.context.parent.command, self.context.parent)
            words = [fault.command, *fault.repaired]
            line = f"{self.context.parent.command_path} {shlex.join(group._repaired(words))}"
        else:
            line = f"{path} {shlex.join(self._repaired(fault.repaired))}".rstrip()
        place = Location(f"{path} {fault.place}".rstrip())
        return InputError.of(fault.code, fault.message, place, fault.advice + line)

    def _repaired(self, words: list[str]) -> list[str]:
        """Repair words, also those of a group's command. Ask for help if that is impossible."""
        if self._commands and not words:  # typer prints a group's help by raising an error
            return ["--help"]
        for _ in range(_MAX_REPAIRS):
            fault = self._fault(words)
            if fault is None:
                break
            words = fault.repaired
            if self._commands and not words:
                return ["--help"]
        else:
            return ["--help"]
        inner = self._commands.get(words[0]) if words else None
        if inner is None:
            return words
        return [words[0], *Usage.of(inner, words[0], self.context)._repaired(words[1:])]

    def _fault(self, words: list[str]) -> _Fault | None:
        """Return the first fault of words, which may cause others, or None."""
        trial = Usage.of(self.command, self.context.info_name, self.context.parent)
        try:
            if self._act_alone(words):
                return None
            self.command.parse_args(trial.context, [*words])
        except Exception as error:
            if not is_usage_error(error):
                raise
            return self._fault_of(words, error)
        return self._unseen_fault(words)

    def _act_alone(self, words: list[str]) -> bool:
        """Whether --help, --version or --install-completion ignores everything else."""
        return any(param.is_eager or not param.expose_value for param in self._parse(words)[2])

    def _fault_of(self, words: Sequence[str], error: Any) -> _Fault:
        """Return the fault for which typer raised an error."""
        if hasattr(error, "option_name"):
            return self._wrong_option(words, error.option_name)
        values, surplus, _ = self._parse(words)
        param = getattr(error, "param", None)
        if param is None:
            return self._setting_in_two(words, surplus) or self._unexpected(values, surplus)
        return self._wrong_value(param, values) or self._missing(values)

    def _unseen_fault(self, words: Sequence[str]) -> _Fault | None:
        """Return the first fault that typer does not see, or None."""
        values, surplus, order = self._parse(words)
        if self._commands:
            return self._unknown_command(surplus)
        if fault := _empty_word(words):
            return fault
        for param in self._params:
            if _is_option(param) and not param.multiple and order.count(param) > 1:
                message, advice = "is given twice", "keep one: "
                return _Fault("E905", _name(param), message, self._words(values), advice)
        return None

    def _missing(self, values: Mapping[str, Any]) -> _Fault:
        """Return the fault of all arguments and options that are missing."""
        missing = [param for param in self._params if param.required and not values.get(param.name)]
        added = {param.name: self._examples[param.name] for param in missing}
        *most, last = map(_name, missing)
        message = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        return _Fault("E903", "", f"{message} missing", self._words({**values, **added}))

    def _setting_in_two(self, words: Sequence[str], surplus: Sequence[str]) -> _Fault | None:
        """Return the fault of a setting with a space for its "=": --set batch.micro 2."""
        for index, option in enumerate(words[:-2]):
            field, value = words[index + 1 : index + 3]
            if option == "--set" and "=" not in field and value in surplus[:1]:
                setting = f"{field}={value}"
                message = f"a field and its value are one word: {setting}"
                repaired = [*words[:index], option, setting, *words[index + 3 :]]
                return _Fault("E906", option, message, repaired)
        return None

    def _unexpected(self, values: Mapping[str, Any], surplus: Sequence[str]) -> _Fault:
        """Return the fault of an argument too many."""
        allowed = [_name(param) for param in self._params if not _is_option(param)]
        message = f'unexpected argument "{surplus[0]}"'
        message += f"; the arguments are: {' '.join(allowed) or 'none'}"
        advice = "remove it, or quote an argument that has spaces: "
        return _Fault("E906", "", message, self._words(values), advice)

    def _wrong_option(self, words: Sequence[str], name: str) -> _Fault:
        """Return the fault of an option that does not exist, or has a value too many or too few."""
        options = {
            option: param
            for param in self._params
            if _is_option(param)
            # click has the names of --help in the random order of a set.
            for option in sorted((*param.opts, *param.secondary_opts), key=len)
        }
        if name not in options:
            return self._unknown_option(words, name, [*options])
        if options[name].is_flag:
            index = next(i for i, word in enumerate(words) if word.startswith(f"{name}="))
            message = f'is given the value "{words[index][len(name) + 1 :]}", but takes none'
            return _Fault("E907", name, message, [*words[:index], name, *words[index + 1 :]])
        param = options[name]
        instead = "" if param.required else ", or leave it out"
        message = f"has no value: write {self._allowed(param)}{instead}"
        example = _as_list(self._examples.get(param.name))[:1]
        return _Fault("E907", name, message, [*words[:-1], *([name, *example] * len(example))])

    def _unknown_option(self, words: Sequence[str], name: str, options: Sequence[str]) -> _Fault:
        """Return the fault of an option that does not exist.

        It is an option of another command, a field of the scenario, misspelt, or unknown.
        """
        index = next(i for i, word in enumerate(words) if _begins_with(word, name))
        word, equals, value = words[index].partition("=")
        before, after = words[:index], words[index + 1 :]
        message = "there is no such option"
        if word == "--gpu" and (value or (*after, "")[0]).isdecimal():
            # A number is one of GPUs; a name would be that of the cluster.
            words = [*before, "--gpus" + equals + value, *after]
            if "--gpus" in options:
                return _Fault("E902", word, message, words, "did you mean --gpus? ")
            word = "--gpus"
        has_value = not equals and bool(after) and not after[0].startswith("-")
        if command := self._other_command(_ELSEWHERE.get(word, ()), words):
            return _Fault("E902", word, message, [*words], f"{command} has {word}: ", command)
        if "--set" in options and (setting := _setting_of(word)):
            field, example = setting
            if has_value:
                value, after = after[0], after[1:]
            advice = f"{field} is a field of the scenario: "
            repaired = [*before, "--set", f"{field}={value or example}", *after]
            return _Fault("E902", word, message, repaired, advice)
        bare_names = {option.lstrip("-"): option for option in options}
        if similar := difflib.get_close_matches(word.lstrip("-"), bare_names, n=1):
            option = bare_names[similar[0]]
            repaired = [*before, option + equals + value, *after]
            return _Fault("E902", word, message, repaired, f"did you mean {option}? ")
        message += f"; the options are {', '.join(options)}"
        if has_value and self._has_all_arguments([*before, *after[1:]]):
            return _Fault("E902", word, message, [*before, *after[1:]], "remove it and its value: ")
        return _Fault("E902", word, message, [*before, *after], "remove it: ")

    def _other_command(self, names: Sequence[str], words: Sequence[str]) -> str:
        """Return the command of the group that has most of the options; "" if none has any."""
        others = _commands_of(self.context.parent and self.context.parent.command)
        options = {word.partition("=")[0] for word in words if word.startswith("--")}

        def num_options(name: str) -> int:
            return len(options & _option_names(others[name]))

        return max((name for name in names if name in others), key=num_options, default="")

    def _has_all_arguments(self, words: Sequence[str]) -> bool:
        """Whether words have the arguments of a command; not if another option is wrong."""
        if self._commands:
            return False
        try:
            values = self._parse(words)[0]
        except Exception as error:
            if not is_usage_error(error):
                raise
            return True
        arguments = [param for param in self._params if param.required and not _is_option(param)]
        return all(values.get(param.name) for param in arguments)

    def _unknown_command(self, words: Sequence[str]) -> _Fault | None:
        """Return a fault if the first word is no command of the group."""
        commands = self._commands
        name, rest = (words[0], words[1:]) if words else ("", [])
        if name in commands:
            return None
        message = "there is no such command" if words else "the command is missing"
        # Also commands of inner groups, so that "fit" finds "calibrate fit".
        paths = {
            leaf: [outer, leaf] for outer in commands for leaf in _commands_of(commands[outer])
        }
        paths |= {name: [name] for name in commands}
        if similar := difflib.get_close_matches(name, paths, n=1):
            path = paths[similar[0]]
            advice = f"did you mean {' '.join(path)}? "
            return _Fault("E901", name, message, [*path, *rest], advice)
        if "run" in commands and (name.endswith(".yaml") or name in shipped_scenarios(name)):
            return _Fault("E901", name, message, ["run", *words], f"did you mean to run {name}? ")
        message += f"; the commands are {', '.join(commands)}"
        return _Fault("E901", name, message, ["--help"])

    def _wrong_value(self, param: Any, values: Mapping[str, Any]) -> _Fault | None:
        """Return the fault of the first value of the wrong type; None if there is no value."""
        is_list = param.multiple if _is_option(param) else param.nargs == -1
        texts = _as_list(values.get(param.name))
        for text in texts:
            try:
                param.process_value(self.context, [text] if is_list else text)
            except typer.BadParameter:
                legal = self._nearest(param, text)
                changed = [new for old in texts for new in (legal if old == text else [old])]
                message = f'"{text}" is not {self._allowed(param)}'
                repaired = self._words({**values, param.name: changed})
                return _Fault("E904", _name(param), message, repaired)
        return None

    def _allowed(self, param: Any) -> str:
        """Describe the values of a parameter: "one of auto, simpy", "an integer of at least 1"."""
        if choices := self._choices(param):
            return f"one of {', '.join(choices)}"
        types = _types_in(get_type_hints(self.command.callback)[param.name])
        kind = next(name for type_, name in _KINDS.items() if type_ in types)
        smallest = self._smallest(param)
        return kind if smallest is None else f"{kind} of at least {smallest}"

    def _nearest(self, param: Any, value: str) -> list[str]:
        """Return the nearest legal value to a wrong one, or the value of an example, or none."""
        if choices := self._choices(param):
            return difflib.get_close_matches(value, choices, n=1, cutoff=0)
        smallest = self._smallest(param)
        with suppress(ValueError):
            if smallest is not None and float(value) < smallest:
                return [str(smallest)]
        return _as_list(self._examples.get(param.name))[:1]

    def _choices(self, param: Any) -> list[str]:
        for hint in _types_in(get_type_hints(self.command.callback).get(param.name)):
            if get_origin(hint) is Literal:
                return [*get_args(hint)]
            if isinstance(hint, EnumType):
                return [str(choice.value) for choice in cast(type[Enum], hint)]
        return []

    def _smallest(self, param: Any) -> float | None:
        hint = get_type_hints(self.command.callback, include_extras=True)[param.name]
        smallest: float | None = hint.__metadata__[0].min
        return smallest

    def _words(self, values: Mapping[str, Any]) -> list[str]:
        """Write a command line with these values: first arguments, then options."""
        arguments: list[str] = []
        options: list[str] = []
        for param in self._params:
            for value in _as_list(values.get(param.name)):
                if not _is_option(param):
                    arguments.append(value)
                elif isinstance(value, bool):
                    options.append((param.opts if value else param.secondary_opts)[0])
                else:
                    options += [param.opts[0], value]
        return arguments + options

    def _parse(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str], list[Any]]:
        """Return the values by parameter, the words left over, and the parameters in order."""
        values, surplus, order = self.command.make_parser(self.context).parse_args([*words])
        return values, surplus, order

    @cached_property
    def _params(self) -> list[Any]:
        return [*self.command.get_params(self.context)]

    @cached_property
    def _commands(self) -> dict[str, Any]:
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


def _types_in(hint: Any) -> set[Any]:
    """Return a type and the types inside it: int and None of `int | None`."""
    return {hint}.union(*map(_types_in, get_args(hint)))


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _name(param: Any) -> str:
    """Return the name of an option, or the metavar of an argument."""
    return str(param.opts[0] if _is_option(param) else param.metavar or param.name.upper())


def _option_names(command: Any) -> set[str]:
    return {name for param in command.params for name in param.opts}


def _commands_of(group: Any) -> dict[str, Any]:
    """Return the commands of a group by name; a command has none."""
    return getattr(group, "commands", {})
