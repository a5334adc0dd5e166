"""Read the arguments of Megatron-LM from a text, an argument file, a shell script or a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from simtrain.base.importer import MOST_BYTES_OF_LOG, text_of_kind
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError, Location, Problem
from simtrain.guests.importing.gpus import NamedMachine, machine_of_log
from simtrain.guests.importing.kinds import KINDS
from simtrain.guests.importing.megatron.arguments import (
    FLAGS,
    KNOWN,
    MAPPED,
    SPELLINGS,
    TABLE,
    WITH_VALUE,
)
from simtrain.guests.importing.megatron.launch import (
    headers_of,
    launch_of,
    machine_of,
    variables_of,
)
from simtrain.guests.importing.settings import Setting
from simtrain.guests.importing.shell.expansion import BashWord
from simtrain.guests.importing.shell.script_reader import read_script, words_of
from simtrain.guests.importing.shell.syntax import CAPTURE_REMEDY, Lines
from simtrain.guests.importing.table import WordTable

TEXT = "the arguments"
"""The file name in errors if the arguments are passed as text."""
_LAUNCHERS = re.compile(r"torchrun|(python|deepspeed|accelerate|srun|mpirun|mpiexec)[\d.]*")


@dataclass(frozen=True, slots=True)
class MegatronSource:
    """The arguments of Megatron-LM, and the settings of its launch.

    Args:
        file: the source.
        arguments: by name; several values are separated by blanks, a flag has "True" or "False".
        launch: settings whose product is the number of ranks, if the source says it.
        script: the training script, such as pretrain_gpt.py, if the source names it.
        is_printed: whether a log prints the arguments.
        tool: what has the arguments, with the words of `table`.
        problems: words that belong to no argument.
        assumptions: what the script leaves open and is taken for granted.
        machine: the GPUs that the source names.
    """

    file: str
    arguments: dict[str, Setting]
    launch: tuple[Setting, ...] = ()
    script: Setting | None = None
    is_printed: bool = False
    tool: str = "Megatron-LM"
    table: WordTable = TABLE
    problems: tuple[Problem, ...] = ()
    assumptions: tuple[str, ...] = ()
    machine: NamedMachine | None = None

    @property
    def hides(self) -> bool:
        return any(problem.code == "E874" for problem in self.problems)


def read_source(text_or_file: str, env: Mapping[str, str] | None = None) -> MegatronSource:
    """Read arguments; a text that contains " --" or starts with "--" is not a file name.

    Args:
        text_or_file: the arguments, or the path of a file.
        env: values of variables that a script does not have.

    Raises:
        InputError: the file cannot be read, or has no arguments.
    """
    if text_or_file.lstrip().startswith("--") or " --" in text_or_file:
        text, file = text_or_file, TEXT
    else:
        path = Path(text_or_file)
        text = text_of_kind(path, *KINDS["megatron"], most_bytes=MOST_BYTES_OF_LOG)
        text, file = text.replace("\r\n", "\n"), text_or_file
    lines, answers, problems = Lines(text, file), env or {}, list[Problem]()
    launch, script = tuple[Setting, ...](), None
    assumptions, machine = tuple[str, ...](), None
    if is_printed := prints_arguments(lines.lines):
        settings = _printed(lines)
        machine = machine_of_log(lines.lines, file)
    elif _begins_with_argument(text):
        # Without comments and line breaks, the text is one command.
        text = re.sub(r"(?<!\S)#[^\n]*", lambda comment: " " * len(comment[0]), text)
        settings = _given(words_of(text, lines, answers), lines, problems)
    else:
        headers = headers_of(text, lines)
        reader = read_script(text, lines, variables_of(headers), answers)
        words = _training_command(reader.commands, lines)
        at = _script_at(words)
        launch = launch_of(words[: at + 1], reader.commands, headers, lines)
        if at >= 0:
            script = Setting("script", words[at].text, words[at].text, _place(lines, words[at]))
        machine = machine_of(text, reader.commands, lines)
        settings = _given(words[at + 1 :], lines, problems)
        if reader.preparations:
            names = "; ".join(dict.fromkeys(reader.preparations))
            assumptions = (f"Taken to set no variable that the script uses: {names}",)
    arguments = {argument.name: argument for argument in settings}
    if not arguments:
        raise InputError.of("E875", "the source has no arguments", Location(file), "add arguments")
    return MegatronSource(
        file,
        arguments,
        launch,
        script,
        is_printed,
        problems=tuple(problems),
        assumptions=assumptions,
        machine=machine,
    )


def prints_arguments(lines: Iterable[str]) -> bool:
    """Return whether the lines are those of a log in which Megatron-LM prints its arguments."""
    return any(_header_prefix(line) is not None for line in lines)


def _begins_with_argument(text: str) -> bool:
    lines = (line.strip() for line in text.split("\n"))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("--")


def _header_prefix(line: str) -> str | None:
    """Return what precedes a header line of printed arguments, such as "0: "; None for others."""
    before, header, after = line.rstrip(" \t").partition("arguments -----")
    if not header or after.strip("-"):
        return None
    dashes = before.rstrip(" ").removesuffix("end of").rstrip(" ")
    prefix = dashes.rstrip("-")
    return prefix.strip() if len(dashes) - len(prefix) >= 5 else None


def _printed(lines: Lines) -> Iterator[Setting]:
    """Yield the arguments that a log prints between its two header lines.

    A launcher may add a prefix to each line, such as "0: ".
    """
    headers = (n for n, line in enumerate(lines.lines) if _header_prefix(line) is not None)
    start = next(headers)
    end = next(headers, len(lines.lines))
    prefix = _header_prefix(lines.lines[start]) or ""
    for number, line in enumerate(lines.lines[start + 1 : end], start=start + 2):
        written = line.strip().removeprefix(prefix).strip()
        name, _, rest = written.partition(" ")
        dots, _, value = rest.partition(" ")
        if name.isidentifier() and not dots.strip("."):
            value = " ".join(value.translate(_WITHOUT_BRACKETS).split())
            place = Location(lines.file, number, line.index(written) + 1, line)
            current, _ = SPELLINGS.get(name, (name, True))
            yield Setting(current, name, value, place)


_WITHOUT_BRACKETS = dict.fromkeys(map(ord, "[]',"), " ")


def _training_command(commands: Sequence[list[BashWord]], lines: Lines) -> list[BashWord]:
    """Return the words of the command that trains.

    Raises:
        InputError: there is none, or several (E875).
    """
    trainings = [
        words
        for words in commands
        if words[0].text not in ("echo", "printf")
        and any(map(_is_megatron, words[_script_at(words) + 1 :]))
    ]
    for is_training in (_starts_script, _has_layers):
        trainings = [*filter(is_training, trainings)] or trainings
    if len(trainings) != 1:
        hidden = next(filter(_hides_arguments, commands), None)
        if hidden and not trainings:
            word = next(word for word in hidden if word.unknown and word.may_be_arguments)
            reason = word.reason or "which the script does not define"
            message = f"the arguments of {hidden[0].text} are not known: {word.unknown}, {reason}"
            raise _no_launch(message, lines, word)
        number = len(trainings) or "no"
        raise _no_launch(f"{number} commands with arguments of Megatron-LM", lines)
    (words,) = trainings
    program = words[0]
    if not (_starts_script(words) or program.unknown or program.text.startswith("-")):
        message = f"{program.text} starts no training script, whose name ends with .py"
        raise _no_launch(message, lines, program)
    return words


def _no_launch(message: str, lines: Lines, word: BashWord | None = None) -> InputError:
    """Return the error of a script in which the command that trains is not found."""
    place = _place(lines, word) if word else Location(lines.file)
    fix = f"import the script that starts torchrun; or {CAPTURE_REMEDY}"
    return InputError.of("E875", message, place, fix)


def _hides_arguments(words: list[BashWord]) -> bool:
    """Return whether a command starts a program with arguments that are not known."""
    is_launcher = _LAUNCHERS.fullmatch(words[0].text.rpartition("/")[2]) is not None
    return is_launcher and any(word.unknown and word.may_be_arguments for word in words)


def _starts_script(words: list[BashWord]) -> bool:
    return _script_at(words) >= 0


def _has_layers(words: list[BashWord]) -> bool:
    return any(word.text.partition("=")[0] == "--num-layers" for word in words)


def _script_at(words: list[BashWord]) -> int:
    """Return the position of the training script among the words of a command, or -1."""
    return next((at for at, word in enumerate(words) if word.text.endswith(".py")), -1)


def _is_megatron(word: BashWord) -> bool:
    return word.text.startswith("--") and _named(word.text.partition("=")[0])[0] in KNOWN


def _named(flag: str) -> tuple[str, bool]:
    """Return the printed name of a flag, and its value if none follows."""
    name = flag.removeprefix("--").replace("-", "_")
    if name in SPELLINGS:
        return SPELLINGS[name]
    if name not in KNOWN:
        for prefix in ("no_", "disable_"):
            if (positive := name.removeprefix(prefix)) != name and positive in KNOWN:
                return positive, False
    return name, True


def _given(words: Iterable[BashWord], lines: Lines, problems: list[Problem]) -> Iterator[Setting]:
    """Yield the arguments in words: flags that start with "--", each with the values after it.

    Words that belong to no argument are added to `problems`. An unknown word behind a flag that has
    a value is taken for one value.
    """
    flags: list[tuple[str, BashWord, list[BashWord]]] = []
    for word in words:
        if word.text.startswith("--"):
            flag, equals, value = word.text.partition("=")
            flags.append((flag, word, [replace(word, text=value)] * bool(equals)))
        elif not flags or not _can_be_value(word, flags[-1][0], flags[-1][2]):
            problems.append(_loose(word, _place(lines, word)))
        else:
            flags[-1][2].append(word)
    for flag, word, values in flags:
        name, value_alone = _named(flag)
        value = " ".join(word.text for word in values) if values else str(value_alone)
        source = next((value for value in values if value.unknown), word)
        unknown = source.unknown if values else None
        place = _place(lines, word)
        yield Setting(name, flag, value, place, unknown, source.reason, source.variable)


def _can_be_value(word: BashWord, flag: str, values: list[BashWord]) -> bool:
    """Whether a word can be a value of a flag; an unknown word could be other arguments."""
    name = _named(flag)[0]
    if word.unknown is None:
        return name not in FLAGS or name in MAPPED or word.text in ("True", "False")
    # The weights and the paths of blended data alternate.
    has_weight = bool(values) and re.fullmatch(r"\d*\.?\d+", values[-1].text) is not None
    return name in WITH_VALUE and (not values or (flag.endswith("data-path") and has_weight))


def _loose(word: BashWord, place: Location) -> Problem:
    if word.unknown:
        message = f"{word.unknown} is among the arguments"
        return unknown_value(message, word, place, effect="it may be several arguments, or none")
    fix = 'start arguments with "--", and quote values with blanks'
    return Problem("E871", f'"{word.text}" does not belong to an argument', place, fix=fix)


def unknown_value(
    message: str,
    value: BashWord | Setting,
    place: Location | None,
    remedy: str = "",
    effect: str = "",
) -> Problem:
    """Return the problem of a value that cannot be read from a script.

    Args:
        message: where the value is needed.
        value: what is unknown, such as "$N" or "$(nproc)".
        place: position of the argument.
        remedy: an option of the command line that replaces this value, or "".
        effect: what the value decides, or "".
    """
    name, reason = value.unknown or "", value.reason
    if name.startswith("$(("):
        reason = reason or "which is not evaluated"
    elif name.startswith("$("):
        reason = reason or "which is the output of a program"
    elif not name.startswith("$"):
        reason = "which bash expands to other words"
    variable = f"--env {value.variable}=..." if value.variable else ""
    options = " or ".join(filter(None, (variable, remedy)))
    remedies = [f"add {options}"] if options else []
    remedies.append("write its value in the file")
    if place is not None and place.file != TEXT:
        remedies.append(CAPTURE_REMEDY)
    return Problem(
        "E874",
        f"{message}, {reason or 'which the file does not define'}",
        place,
        effect or None,
        "; or ".join(remedies),
    )


def _place(lines: Lines, word: BashWord) -> Location:
    return Location(TEXT) if lines.file == TEXT else lines.location(word.offset)
