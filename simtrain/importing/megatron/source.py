"""Read the arguments of Megatron-LM from a text, an argument file, a shell script or a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simtrain.errors import InputError, Location, Problem
from simtrain.file_kinds import LOG, MOST_BYTES_OF_LOG, SHELL, refuse_other_kinds
from simtrain.importing.megatron.arguments import KNOWN, SPELLINGS
from simtrain.importing.megatron.shell import Text, split, string, unknown_name, words_of_commands
from simtrain.importing.megatron.shell_words import location_of
from simtrain.importing.settings import Setting, unknown_setting
from simtrain.strict_yaml import read_text

TEXT = "the arguments"
"""The file name in errors if the arguments are passed as text."""

_PRINTED = re.compile(r"^(.*?)-{5,} (?:end of )?arguments -{5,}[ \t]*$", re.MULTILINE)
_PRINTED_LINE = re.compile(r"([A-Za-z]\w*) \.* ?(.*?)\s*$")
_LAUNCHER = re.compile(r"--?(nproc[-_]per[-_]node|nnodes)")


@dataclass(frozen=True, slots=True)
class Source:
    """The arguments of Megatron-LM and of the launcher (`nproc_per_node`, `nnodes`).

    A value is text: several values are separated by blanks, and a flag has "True" or "False".
    Unknown values of a script have the marks of `shell`.
    """

    file: str
    arguments: dict[str, Setting]
    launcher: dict[str, Setting]
    is_printed: bool = False


def read_source(text_or_file: str) -> Source:
    """Read arguments; a text that contains " --" or starts with "--" is not a file name.

    Raises:
        InputError: the file cannot be read, or has no arguments; every unknown argument.
    """
    if text_or_file.lstrip().startswith("--") or " --" in text_or_file:
        text, file = text_or_file, TEXT
    else:
        text = read_text(Path(text_or_file), MOST_BYTES_OF_LOG)
        text, file = text.replace("\r\n", "\n"), text_or_file
        refuse_other_kinds(text, file, SHELL, LOG)
    if _PRINTED.search(text):
        return _source(file, _printed(text, file), {}, is_printed=True)
    if not _begins_with_argument(text):
        launcher, words = _training_command(text, file)
        return _source(file, _given(words, text, file), _launched(launcher, text, file))
    # Without comments and line breaks, the text is one command.
    line = _without_comments(text).replace("\\\n", " \n").replace("\n", " ")
    words = [word for words in words_of_commands(line, file) for word in words]
    return _source(file, _given(words, text, file), {})


def _begins_with_argument(text: str) -> bool:
    lines = (line.strip() for line in text.split("\n"))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("--")


def _without_comments(text: str) -> str:
    """Replace comments with blanks, which keeps offsets."""
    return re.sub(r"(?<!\S)#[^\n]*", lambda found: " " * len(found[0]), text)


def _printed(text: str, file: str) -> Iterator[Setting]:
    """Yield the arguments that a log prints between its two header lines.

    A launcher may add a prefix to each line, such as "0: ".
    """
    start, *ends = _PRINTED.finditer(text)
    prefix = start[1].strip()
    end = ends[0].start() if ends else len(text)
    first_line = text.count("\n", 0, start.end())
    for number, line in enumerate(text[start.end() : end].split("\n"), start=first_line + 1):
        written = line.strip().removeprefix(prefix).strip()
        if found := _PRINTED_LINE.fullmatch(written):
            value = re.sub(r"[\[\]',]+", " ", found[2]).strip()
            place = Location(file, number, line.index(written) + 1, line)
            yield Setting(found[1], found[1], value, place)


def _training_command(script: str, file: str) -> tuple[list[Text], list[Text]]:
    """Return the words of the launcher and of Megatron-LM in the command that starts training."""
    found = []
    for words in words_of_commands(script, file):
        # In `bash -c "torchrun ..."` and `eval "$COMMAND"`, the command is one word.
        words = [part for word in words for part in _parts(word)]
        at = next((at for at, word in enumerate(words) if string(word).endswith(".py")), -1)
        if string(words[0]) not in ("echo", "printf") and any(map(_is_megatron, words[at + 1 :])):
            found.append((words[: at + 1], words[at + 1 :]))
    if len(found) == 1:
        return found[0]
    message = f"{len(found) or 'no'} commands with arguments of Megatron-LM"
    fix = "import the script that starts torchrun, or import the arguments alone as one text"
    raise InputError.of("E875", message, Location(file), fix)


def _parts(word: Text) -> list[Text]:
    text = string(word)
    return split(word) if ".py" in text and " --" in text else [word]


def _is_megatron(word: Text) -> bool:
    return string(word).startswith("--") and _named(string(word).partition("=")[0])[0] in KNOWN


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


def _given(words: Iterable[Text], text: str, file: str) -> Iterator[Setting]:
    """Yield the arguments in words: flags that start with "--", each with the values after it."""
    flags: list[tuple[Text, list[str]]] = []
    for word in words:
        written = string(word)
        if written.startswith("--"):
            flag, equals, value = written.partition("=")
            flags.append((word[: len(flag)], [value] * bool(equals)))
        elif not flags or not _can_be_value(written, *flags[-1]):
            raise _loose(written, _place(text, file, word))
        elif written != "\\":
            flags[-1][1].append(written)
    for flag_text, values in flags:
        name, value_alone = _named(string(flag_text))
        value = " ".join(values) if values else str(value_alone)
        yield Setting(name, string(flag_text), value, _place(text, file, flag_text))


def _can_be_value(written: str, flag: Text, values: list[str]) -> bool:
    """Whether a word can be a value of a flag; an unknown word could contain other arguments."""
    unknown = unknown_name(written)
    is_list = string(flag).endswith("data-path")
    return unknown is None or is_list or (not values and not unknown.endswith("[@]"))


def _loose(written: str, place: Location) -> InputError:
    if unknown := unknown_name(written):
        return unknown_value(f"{unknown} is among the arguments", unknown, place)
    fix = 'start arguments with "--", and quote values with blanks'
    return InputError.of("E871", f'"{written}" does not belong to an argument', place, fix)


def unknown_value(message: str, name: str, place: Location | None) -> InputError:
    """Return the error about a value that a script does not define."""
    return InputError.of(
        "E874",
        f"{message}, which the file does not define",
        place,
        f"set {name.removesuffix('[@]')} at the top of the file, without a condition on other "
        "files or programs, or import the arguments alone as one text",
    )


def _place(text: str, file: str, word: Text) -> Location:
    return Location(TEXT) if file == TEXT else location_of(text, file, word[0][1] if word else 0)


def _launched(words: list[Text], text: str, file: str) -> dict[str, Setting]:
    """Return the launcher's arguments that set the number of ranks."""
    found: dict[str, Setting] = {}
    for word, following in pairwise([*words, []]):
        flag, equals, value = string(word).partition("=")
        if match := _LAUNCHER.fullmatch(flag):
            name = match[1].replace("-", "_")
            value = value if equals else string(following)
            found[name] = Setting(name, flag, value, _place(text, file, word))
    return found


def _source(
    file: str,
    given: Iterable[Setting],
    launcher: dict[str, Setting],
    is_printed: bool = False,
) -> Source:
    arguments = {argument.name: argument for argument in given}
    if problems := [_unknown(one) for one in arguments.values() if one.name not in KNOWN]:
        raise InputError(problems)
    if not arguments:
        raise InputError.of("E875", "the source has no arguments", Location(file), "add arguments")
    return Source(file, arguments, launcher, is_printed)


def _unknown(argument: Setting) -> Problem:
    known = KNOWN
    if argument.spelled.startswith("--"):
        known = {f"--{name.replace('_', '-')}" for name in KNOWN | SPELLINGS.keys()}
    if argument.spelled.startswith("--no-"):
        known |= {f"--no-{name.replace('_', '-')}" for name in KNOWN}
    message = f"{argument.spelled} is not a known argument of Megatron-LM"
    return unknown_setting(argument.spelled, message, argument.place, known)
