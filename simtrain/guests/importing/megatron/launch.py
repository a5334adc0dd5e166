"""Read the number of ranks and the GPU from a launch: headers, and options of srun and torchrun."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile, zip_longest
from pathlib import Path

from simtrain.base.values import replace
from simtrain.guests.importing.gpus import NamedMachine, gpus_in
from simtrain.guests.importing.settings import Setting
from simtrain.guests.importing.shell.expansion import BashWord
from simtrain.guests.importing.shell.syntax import Lines
from simtrain.guests.importing.table import WordsFile

_FILE = WordsFile(Path(__file__).with_suffix(".toml"))
_SLURM, _TORCHRUN = _FILE.section("slurm"), _FILE.section("torchrun")
_STARTERS = {name: _FILE.section(kind) for name, kind in _FILE.section("starters").items()}
_GPU_OPTIONS: list[list[str]] = _FILE.section("gpus")["options"]
_SUBMITTERS: list[str] = _FILE.section("gpus")["submitters"]
_TORCHRUN_NAMES = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_PYTHON = re.compile(r"(?:\S*/)?(?:python[\d.]*|bash|sh|torchrun)")
_HEADER = re.compile(r"^#SBATCH[ \t]+(\S[^\n]*)", re.MULTILINE)
_ANY_HEADER = re.compile(r"^#(?:SBATCH|PBS|BSUB|\$)[ \t]+(\S[^\n]*)", re.MULTILINE)
_COUNT = re.compile(r"(?:gpu:|gres:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,7})")
_ALL_GPUS = ("gpu", "auto")
"""Values of --nproc-per-node that stand for all GPUs of a node."""


def machine_of(
    script: str, commands: Iterable[Sequence[BashWord]], lines: Lines
) -> NamedMachine | None:
    """Return the GPUs that the headers or the launcher of a script name, or None.

    Args:
        script: the script.
        commands: the commands that it runs.
        lines: its lines.
    """
    launches = [_words_of_header(header) for header in _ANY_HEADER.finditer(script)]
    launches += [
        [*_before_program(command)] for command in commands if command[0].text in _SUBMITTERS
    ]
    for options in _GPU_OPTIONS:
        for words in launches:
            for flag, value, word, source in _valued(words):
                gpus = gpus_in(value) if flag in options and not source.unknown else ()
                if gpus:
                    return NamedMachine(gpus, f"{flag} {value}", lines.location(word.offset))
    return None


def headers_of(script: str, lines: Lines) -> dict[str, Setting]:
    """Return the settings of the `#SBATCH` lines of a script."""
    words = chain(*map(_words_of_header, _HEADER.finditer(script)))
    return _settings(words, _SLURM, lines)


def _words_of_header(header: re.Match[str]) -> list[BashWord]:
    """Return the words of a header line up to a comment."""
    words = takewhile(lambda word: word[0][0] != "#", re.finditer(r"\S+", header[1]))
    return [BashWord(word[0], header.start(1) + word.start()) for word in words]


def variables_of(headers: Mapping[str, Setting]) -> dict[str, str]:
    """Return the values of Slurm's variables in a job with these headers."""
    counts = {name: header.value for name, header in headers.items() if header.value.isdecimal()}
    if {"nodes", "tasks_per_node"} <= counts.keys():
        counts.setdefault("tasks", str(int(counts["nodes"]) * int(counts["tasks_per_node"])))
    return {
        variable: counts[name]
        for name, variables in _FILE.section("variables").items()
        for variable in variables
        if name in counts
    }


def launch_of(
    words: Sequence[BashWord],
    starters: Iterable[Sequence[BashWord]],
    headers: Mapping[str, Setting],
    lines: Lines,
) -> tuple[Setting, ...]:
    """Return the settings whose product is the number of ranks; none if the launch does not say it.

    Args:
        words: the words before the arguments of Megatron-LM.
        starters: the commands with srun or mpirun that may start them.
        headers: the settings of Slurm's headers.
        lines: the lines of the script.
    """
    settings = {**headers}
    is_job = False
    for command in (*starters, words):
        if options := _STARTERS.get(command[0].text if command else ""):
            is_job = True
            settings |= _settings(_before_program(command), options, lines)
    if any(word.text.endswith(_TORCHRUN_NAMES) for word in words):
        torchrun = _settings(words, _TORCHRUN, lines)
        processes = torchrun.get("processes_per_node")
        nodes = torchrun.get("nodes") or (settings.get("nodes") if is_job else None)
        if processes and processes.value in _ALL_GPUS:
            unknown = replace(processes, unknown=processes.value)
            processes = settings.get("gpus_per_node", unknown)
        if not processes or (not nodes and any(word.may_be_arguments for word in words)):
            return ()
        return (processes, nodes) if nodes else (processes,)
    for names in (("tasks",), ("tasks_per_node", "nodes"), ("gpus",), ("gpus_per_node", "nodes")):
        if all(name in settings for name in names):
            return tuple(settings[name] for name in names)
    return ()


def _before_program(command: Sequence[BashWord]) -> Iterator[BashWord]:
    """Yield the options of srun or mpirun, which end at the program that they start."""
    for word in command[1:]:
        if _PYTHON.fullmatch(word.text):
            return
        yield word


def _settings(
    words: Iterable[BashWord], options: Mapping[str, str], lines: Lines
) -> dict[str, Setting]:
    """Return the options among words, by our names; a value that is no number is unknown."""
    settings: dict[str, Setting] = {}
    for flag, value, word, source in _valued([*words], options):
        name = options.get(flag) or options.get(f"--{flag.lstrip('-').replace('_', '-')}")
        if not name:
            continue
        count = _COUNT.fullmatch(value)
        unknown = source.unknown
        if count and not unknown:
            value = count[1]
        elif not unknown and value not in _ALL_GPUS:
            unknown = value or '""'
        if flag != "--gres" or unknown or "gpu" in source.text:
            place = lines.location(word.offset)
            settings[name] = Setting(
                name, flag, value, place, unknown, source.reason, source.variable
            )
    return settings


def _valued(
    words: Sequence[BashWord], options: Iterable[str] = ()
) -> Iterator[tuple[str, str, BashWord, BashWord]]:
    """Yield each option with its value, its word, and the word that has the value.

    Args:
        words: the words of a command or of headers.
        options: options of one letter that a value may follow without a blank, such as -N4.
    """
    short = {*chain(*_GPU_OPTIONS), *options}
    for word, following in zip_longest(words, words[1:]):
        flag, equals, value = word.text.partition("=")
        if not flag.startswith("-"):
            continue
        if flag[:2] in short and not flag.startswith("--") and flag not in short:
            yield flag[:2], word.text[2:], word, word
        elif equals or not following:
            yield flag, value, word, word
        else:
            yield flag, following.text, word, following
