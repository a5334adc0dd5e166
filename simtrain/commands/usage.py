"""Wrong command lines: what is wrong, what is allowed, and the nearest command line that works.

Commands, contexts and parameters are typer's. They are `Any` here: typer has no public names for
their types.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
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

# Raised for an option that does not exist, and for a value too many or too few.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]
_MAX_REPAIRS = 20
_KINDS = {int: "an integer", float: "a number", Path: "a path", str: "text"}
# Options that users write with other commands, and the command that has them.
_ELSEWHERE = {
    **dict.fromkeys(("--gpus", "--top"), "search"),
    **dict.fromkeys(("--days", "--budget", "--price"), "plan"),
    **dict.fromkeys(("--tokens", "--goodput"), "cost"),
    **dict.fromkeys(("--ops", "--trace"), "run"),
    "--change": "compare",
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


@dataclass
class Usage:
    """How a command, or a group of commands, may be used. `context` is typer's of this use."""

    command: Any
    context: Any

    def check(self, words: Sequence[str]) -> None:
        """Refuse wrong arguments.

        Raises:
            InputError: the first fault, with a command line without any fault (E901 to E907).
        """
        fault = next(self._faults(words), None)
        if fault is None:
            return
        path = self.context.command_path
        if fault.command:
            group = Usage(self.context.parent.command, self.context.parent)
            words = [fault.command, *fault.repaired]
            line = f"{self.context.parent.command_path} {shlex.join(group._repaired(words))}"
        else:
            line = f"{path} {shlex.join(self._repaired(fault.repaired))}".rstrip()
        place = Location(f"{path} {fault.place}".rstrip())
        raise InputError.of(fault.code, fault.message, place, fault.advice + line)

    def _repaired(self, words: list[str]) -> list[str]:
        """Repair words, also those of a group's command. Ask for help if that is impossible."""
        for _ in range(_MAX_REPAIRS):
            fault = next(self._faults(words), None)
            if fault is None:
                break
            words = fault.repaired
        else:
            return ["--help"]
        inner = self._commands.get(words[0]) if words else None
        if inner is None:
            return words
        context = inner.make_context(words[0], [], parent=self.context, resilient_parsing=True)
        context.resilient_parsing = False
        return [words[0], *Usage(inner, context)._repaired(words[1:])]

    def _faults(self, words: Sequence[str]) -> Iterator[_Fault]:
        """Yield faults; only the first is certain, because it may cause the others."""
        if not self._commands:
            yield from _empty_words(words)
        try:
            given, surplus, order = self._parse(words)
        except _UsageError as error:
            yield self._wrong_option(words, error.option_name)
            return
        # --help, --version and --install-completion act alone and ignore everything else.
        if any(param.is_eager or not param.expose_value for param in order):
            return
        if self._commands:
            yield from self._unknown_command(surplus)
            return
        for param in self._params:
            yield from self._wrong_values(param, given)
        for param in self._params:
            if _is_option(param) and not param.multiple and order.count(param) > 1:
                message, advice = "is given twice", "keep one: "
                yield _Fault("E905", _name(param), message, self._words(given), advice)
        missing = [param for param in self._params if param.required and not given.get(param.name)]
        if missing:
            added = {param.name: self._examples[param.name] for param in missing}
            *most, last = map(_name, missing)
            message = f"{', '.join(most)} and {last} are" if most else f"{last} is"
            yield _Fault("E903", "", f"{message} missing", self._words(given | added))
        if surplus:
            allowed = [_name(param) for param in self._params if not _is_option(param)]
            message = f'unexpected argument "{surplus[0]}"'
            message += f"; the arguments are: {' '.join(allowed) or 'none'}"
            advice = "remove it, or quote an argument that has spaces: "
            yield _Fault("E906", "", message, self._words(given), advice)

    def _wrong_option(self, words: Sequence[str], name: str) -> _Fault:
        """Return the fault of an option that does not exist, or has a value too many or too few."""
        options = {
            option: param
            for param in self._params
            if _is_option(param)
            # click has the names of --help in the random order of a set.
            for option in sorted((*param.opts, *param.secondary_opts), key=len)
        }
        if name in options and options[name].is_flag:
            index = next(i for i, word in enumerate(words) if word.startswith(f"{name}="))
            message = f'is given the value "{words[index][len(name) + 1 :]}", but takes none'
            return _Fault("E907", name, message, [*words[:index], name, *words[index + 1 :]])
        if name in options:
            param = options[name]
            instead = "" if param.required else ", or leave it out"
            message = f"has no value: write {self._allowed(param)}{instead}"
            example = _as_list(self._examples.get(param.name))[:1]
            return _Fault("E907", name, message, [*words[:-1], *([name, *example] * len(example))])
        index = next(i for i, word in enumerate(words) if _begins_with(word, name))
        word, equals, value = words[index].partition("=")
        before, after = words[:index], words[index + 1 :]
        message = "there is no such option"
        has_value = not equals and bool(after) and not after[0].startswith("-")
        group = self.context.parent and self.context.parent.command
        if (command := _ELSEWHERE.get(word, "")) in _commands_of(group):
            return _Fault("E902", word, message, [*words], f"{command} has {word}: ", command)
        if "--set" in options and (setting := _setting_of(word)):
            field, shown = setting
            if has_value:
                value, after = after[0], after[1:]
            advice = f"{field} is a field of the scenario: "
            repaired = [*before, "--set", f"{field}={value or shown}", *after]
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

    def _has_all_arguments(self, words: Sequence[str]) -> bool:
        """Whether words have the arguments of a command; not if another option is wrong."""
        if self._commands:
            return False
        with suppress(_UsageError):
            given = self._parse(words)[0]
            return all(
                given.get(one.name) for one in self._params if one.required and not _is_option(one)
            )
        return True

    def _unknown_command(self, words: Sequence[str]) -> Iterator[_Fault]:
        """Yield a fault if the first word is no command of the group."""
        known = self._commands
        name, rest = (words[0], words[1:]) if words else ("", [])
        if name in known:
            return
        message = "there is no such command" if words else "the command is missing"
        # Also commands of inner groups, so that "fit" finds "calibrate fit".
        paths = {leaf: [outer, leaf] for outer in known for leaf in _commands_of(known[outer])}
        paths |= {name: [name] for name in known}
        if similar := difflib.get_close_matches(name, paths, n=1):
            path = paths[similar[0]]
            advice = f"did you mean {' '.join(path)}? "
            yield _Fault("E901", name, message, [*path, *rest], advice)
        elif "run" in known and (name.endswith(".yaml") or name in shipped_scenarios(name)):
            yield _Fault("E901", name, message, ["run", *words], f"did you mean to run {name}? ")
        else:
            message += f"; the commands are {', '.join(known)}"
            yield _Fault("E901", name, message, ["--help"])

    def _wrong_values(self, param: Any, given: Mapping[str, Any]) -> Iterator[_Fault]:
        """Yield a fault for each value of the wrong type."""
        values = _as_list(given.get(param.name))
        is_list = param.multiple if _is_option(param) else param.nargs == -1
        for value in values:
            try:
                param.process_value(self.context, [value] if is_list else value)
            except typer.BadParameter:
                legal = self._nearest(param, value)
                changed = [new for one in values for new in (legal if one == value else [one])]
                message = f'"{value}" is not {self._allowed(param)}'
                repaired = self._words({**given, param.name: changed})
                yield _Fault("E904", _name(param), message, repaired)

    def _allowed(self, param: Any) -> str:
        """Describe the values of a parameter: "one of auto, simpy", "an integer of at least 1"."""
        if choices := self._choices(param):
            return f"one of {', '.join(choices)}"
        types = _types_in(get_type_hints(self.command.callback)[param.name])
        kind = next(name for one, name in _KINDS.items() if one in types)
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

    def _words(self, given: Mapping[str, Any]) -> list[str]:
        """Write a command line with these values: first arguments, then options."""
        arguments: list[str] = []
        options: list[str] = []
        for param in self._params:
            for value in _as_list(given.get(param.name)):
                if not _is_option(param):
                    arguments.append(value)
                elif isinstance(value, bool):
                    options.append((param.opts if value else param.secondary_opts)[0])
                else:
                    options += [param.opts[0], value]
        return arguments + options

    def _parse(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str], list[Any]]:
        """Return the values by parameter, the words left over, and the parameters in order."""
        given, surplus, order = self.command.make_parser(self.context).parse_args([*words])
        return given, surplus, order

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
            given = self._parse(words[words.index(self.context.info_name) + 1 :])[0]
            values = {name: value for name, value in given.items() if value is not None} | values
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


def _empty_words(words: Sequence[str]) -> Iterator[_Fault]:
    """Yield faults of empty words.

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
        yield _Fault("E904", name or (before if is_value else "ARGUMENT"), message, rest)


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


def _commands_of(group: Any) -> dict[str, Any]:
    """Return the commands of a group by name; a command has none."""
    return getattr(group, "commands", {})
