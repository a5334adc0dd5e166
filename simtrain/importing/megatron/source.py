"""Read the arguments of Megatron-LM from a text, an argument file, a shell script or a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from simtrain.base.input_file import MOST_BYTES_OF_LOG, text_of_kind
from simtrain.base.strict_yaml import as_scalar, parse_document
from simtrain.errors import InputError, Location, Problem
from simtrain.importing.gpus import NamedMachine, machine_of_log
from simtrain.importing.importers import Megatron
from simtrain.importing.megatron.arguments import (
    FLAGS,
    KNOWN,
    MAPPED,
    SPELLINGS,
    TABLE,
    WITH_VALUE,
)
from simtrain.importing.megatron.launch import (
    headers_of,
    hidden_options,
    launch_of,
    machine_of,
    variables_of,
    year_of_image,
)
from simtrain.importing.settings import Setting
from simtrain.importing.shell.script_reader import (
    Environment,
    ScriptReader,
    read_script,
    words_of,
)
from simtrain.importing.shell.syntax import Lines
from simtrain.importing.shell.values import Argument
from simtrain.importing.table import WordTable

TEXT = "the arguments"
"""The file name in errors if the arguments are passed as text."""
_TOKENIZER, _TOKENIZER_FLAG = "TOKENIZER_MODEL", "--tokenizer-model"
"""The variable of Megatron-LM's files of settings whose value its scripts pass with this flag."""
_BLOCKING = "CUDA_LAUNCH_BLOCKING"
_LAUNCHERS = re.compile(r"torchrun|(python|deepspeed|accelerate|srun|mpirun|mpiexec)[\d.]*")


@dataclass(frozen=True, slots=True)
class Source:
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
        year: that of its container image.
        blocking: the variable of a script with which the host waits for each kernel.
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
    year: int | None = None
    blocking: Setting | None = None

    @property
    def hides(self) -> bool:
        return any(problem.code == "E874" for problem in self.problems)


def read_source(text_or_file: str, env: Mapping[str, str] | None = None) -> Source:
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
        text = text_of_kind(path, *Megatron.kinds, most_bytes=MOST_BYTES_OF_LOG)
        text, file = text.replace("\r\n", "\n"), text_or_file
    lines = Lines(text, file)
    launch, script, blocking = tuple[Setting, ...](), None, None
    machine = None
    environment, problems = Environment(answers=env or {}), list[Problem]()
    assumptions, single = list[str](), list[str]()
    is_printed = prints_arguments(lines.lines)
    if is_printed:
        settings = _printed(lines)
        machine = machine_of_log(lines.lines, file)
    elif Megatron.kinds[2].sign_in(text):
        settings = _given(words_of_config(text, lines, environment), lines, problems, single)
    elif _begins_with_argument(text):
        # Without comments and line breaks, the text is one command.
        words = words_of(_without_comments(text), lines, environment)
        settings = _given(words, lines, problems, single)
    else:
        headers = headers_of(text, lines)
        environment = replace(environment, variables=variables_of(headers))
        reader = read_script(text, lines, environment)
        variable = reader.variable(_BLOCKING)
        if variable and variable.text.strip() == "1":
            blocking = Setting(_BLOCKING, _BLOCKING, variable.text, _place(lines, variable))
        launch, script, words, hidden = _training_command(reader, lines, headers)
        machine = machine_of(text, reader.commands, lines)
        settings = _given(words, lines, problems, single)
        if reader.preparations:
            commands = "; ".join(dict.fromkeys(reader.preparations))
            assumptions.append(f"Taken to set no variable that the script uses: {commands}")
        if hidden:
            names = ", ".join(dict.fromkeys(map(str, hidden)))
            assumptions.append(f"Taken to change no number of GPUs of the launch: {names}")
    arguments = {argument.name: argument for argument in settings}
    if single:
        assumptions.append(f"Taken for one value each, which is not known: {', '.join(single)}")
    if not arguments:
        raise InputError.of("E875", "the source has no arguments", Location(file), "add arguments")
    return Source(
        file,
        arguments,
        launch,
        script,
        is_printed,
        problems=tuple(problems),
        assumptions=tuple(assumptions),
        machine=machine,
        year=year_of_image(text),
        blocking=blocking,
    )


def prints_arguments(lines: Iterable[str]) -> bool:
    """Return whether the lines are those of a log in which Megatron-LM prints its arguments."""
    return any(_header_prefix(line) is not None for line in lines)


def _begins_with_argument(text: str) -> bool:
    lines = (line.strip() for line in text.split("\n"))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("--")


def _without_comments(text: str) -> str:
    return re.sub(r"(?<!\S)#[^\n]*", lambda comment: " " * len(comment[0]), text)


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


def _training_command(
    reader: ScriptReader, lines: Lines, headers: Mapping[str, Setting]
) -> tuple[tuple[Setting, ...], Setting | None, list[Argument], list[str]]:
    """Return the launch, the training script and the arguments of the command that trains.

    The last are the unknown options of the launch, with their lines.
    """
    # A file of settings has the arguments in a variable alone, and a script that submits another
    # one to Slurm has the command in a variable.
    trainings = _trainings(reader.commands)
    for is_training in (_is_no_function, _starts_script, _has_layers, _is_no_eval):
        trainings = [*filter(is_training, trainings)] or trainings
    hidden = next(filter(_hides_arguments, reader.commands), None)
    if not trainings and hidden:
        word = next(word for word in hidden if word.unknown and word.may_be_arguments)
        reason = word.reason or "which the script does not define"
        message = f"the arguments of {hidden[0].text} are not known: {word.unknown}, {reason}"
        raise _no_launch(message, lines, word)
    if not trainings:
        # Nothing says how several variables belong together.
        variables = _trainings(reader.values())
        trainings = [*filter(_starts_script, variables)] or variables
        tokenizer = reader.variable(_TOKENIZER)
        if tokenizer and not any(word.text == _TOKENIZER_FLAG for word in chain(*trainings)):
            flag = Argument(_TOKENIZER_FLAG, tokenizer.offset)
            trainings = [[*words, flag, tokenizer] for words in trainings]
    if len(trainings) != 1:
        raise _no_launch(f"{len(trainings) or 'no'} commands with arguments of Megatron-LM", lines)
    (words,) = trainings
    at = _script_at(words)
    program = words[0]
    if program.is_function:
        raise _no_launch(f"{program.text} is a function, which is not read", lines, program)
    if at < 0 and not (program.unknown or program.text.startswith("-")):
        message = f"{program.text} starts no training script, whose name ends with .py"
        raise _no_launch(message, lines, program)
    launch = launch_of(words[: at + 1], reader.commands, headers, lines)
    name = words[at].text
    training = Setting("script", name, name, _place(lines, words[at])) if at >= 0 else None
    unknown = hidden_options(words[: at + 1], reader.commands) if launch else []
    options = [f"{word.unknown} (line {lines.number(word.offset)})" for word in unknown]
    return launch, training, words[at + 1 :], options


def _no_launch(message: str, lines: Lines, word: Argument | None = None) -> InputError:
    """Return the error of a script in which the command that trains is not found."""
    place = _place(lines, word) if word else Location(lines.file)
    fix = "import the script that starts torchrun, or import the arguments alone as one text"
    return InputError.of("E875", message, place, f"{fix}; or {lines.capture_remedy}")


def _hides_arguments(words: list[Argument]) -> bool:
    """Return whether a command starts a program with arguments that are not known."""
    is_launcher = _LAUNCHERS.fullmatch(words[0].text.rpartition("/")[2]) is not None
    return is_launcher and any(word.unknown and word.may_be_arguments for word in words)


def _starts_script(words: list[Argument]) -> bool:
    return _script_at(words) >= 0


def _is_no_function(words: list[Argument]) -> bool:
    return not words[0].is_function


def _is_no_eval(words: list[Argument]) -> bool:
    """Whether a command is not the `eval` of a text that is among the commands too."""
    return words[0].text != "eval"


def _has_layers(words: list[Argument]) -> bool:
    return any(word.text.partition("=")[0] == "--num-layers" for word in words)


def _script_at(words: list[Argument]) -> int:
    """Return the position of the training script among the words of a command, or -1."""
    return next((at for at, word in enumerate(words) if word.text.endswith(".py")), -1)


def _trainings(commands: Iterable[list[Argument]]) -> list[list[Argument]]:
    """Return the commands with arguments of Megatron-LM."""
    return [
        words
        for words in commands
        if words[0].text not in ("echo", "printf")
        and any(map(_is_megatron, words[_script_at(words) + 1 :]))
    ]


def _is_megatron(word: Argument) -> bool:
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


def _given(
    words: Iterable[Argument], lines: Lines, problems: list[Problem], single: list[str]
) -> Iterator[Setting]:
    """Yield the arguments in words: flags that start with "--", each with the values after it.

    Words that belong to no argument are added to `problems`. Unknown words that may be several, and
    are taken for the one value of an argument, are added to `single`.
    """
    flags: list[tuple[str, Argument, list[Argument]]] = []
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
        if unknown and source.may_be_arguments:
            single.append(f"{unknown} of {flag}")
        yield Setting(
            name,
            flag,
            value,
            _place(lines, word),
            unknown,
            source.reason,
            source.variable,
            any(value.is_pattern for value in values),
        )


def _can_be_value(word: Argument, flag: str, values: list[Argument]) -> bool:
    """Whether a word can be a value of a flag; an unknown word could be other arguments."""
    name = _named(flag)[0]
    if word.unknown is None:
        return name not in FLAGS or name in MAPPED or word.text in ("True", "False")
    # The weights and the paths of blended data alternate.
    is_path = flag.endswith("data-path") and bool(values) and _is_weight(values[-1].text)
    return name in WITH_VALUE and (not values or is_path)


def _is_weight(text: str) -> bool:
    return re.fullmatch(r"\d*\.?\d+", text) is not None


def _loose(word: Argument, place: Location) -> Problem:
    if word.unknown:
        message = f"{word.unknown} is among the arguments"
        return unknown_value(message, word, place, effect="it may be several arguments, or none")
    fix = 'start arguments with "--", and quote values with blanks'
    return Problem("E871", f'"{word.text}" does not belong to an argument', place, fix=fix)


def unknown_value(
    message: str,
    value: Argument | Setting,
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
        remedies.append(Lines("", place.file).capture_remedy)
    return Problem(
        "E874",
        f"{message}, {reason or 'which the file does not define'}",
        place,
        effect or None,
        "; or ".join(remedies),
    )


def _place(lines: Lines, word: Argument) -> Location:
    return Location(TEXT) if lines.file == TEXT else lines.location(word.offset)


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
