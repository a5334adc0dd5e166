"""`simtrain import --record`."""

from __future__ import annotations

import ast
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from simtrain.base.importer import Recorder
from simtrain.base.values import dataclass
from simtrain.commands.declare import Option
from simtrain.errors import InputError, Location

_SUFFIX = ".program.json.gz"
_SECONDS = 600.0


def _parse_program(text: str, option: str) -> tuple[Path, str]:
    script, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier():
        message = f'"{text}" names no function of a Python file'
        fix = f"write {text.rstrip(':') or 'train.py'}:FUNCTION, such as train.py:main"
        raise InputError.of("E950", message, Location(option), fix)
    return Path(script), function


def _parse_arguments(texts: list[str], option: str) -> dict[str, Any]:
    """Read NAME=VALUE, where a value is a literal of Python or JSON, or else text."""
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            fix = "write --arg NAME=VALUE, such as --arg layers=32"
            raise InputError.of("E951", f'"{text}" is no argument', Location(option), fix)
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> Any:
    """Return False for "False" and for "false", 32 for "32", and text for any other text."""
    for parse in (ast.literal_eval, json.loads):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = parse(text)
            json.dumps(value)  # the program gets it as JSON, which has neither sets nor bytes
            return value
    return text


@dataclass(frozen=True, slots=True)
class TorchRecorder(Recorder):
    """A torch program of which `simtrain import` records a training step, without GPUs.

    It runs, as python FILE.py does, in a process of its own: with torch on its CPU, on tensors
    without values and in a process group without other processes.

    Args:
        program: record a step of a torch program. Its function builds and parallelizes the model
            as on GPUs and returns (model, batch, loss, optimizer). This runs the program.
        arguments: a keyword argument of the recorded function, such as layers=32. May be repeated.
        microbatches: how often recorded forward and backward passes run before the optimizer, which
            adds up their gradients.
        seconds: how long a recorded program may run.
    """

    name = "torch"

    program: Annotated[
        tuple[Path, str] | None,
        Option("--record", metavar="FILE.py:FUNCTION", parse=_parse_program),
    ] = None
    arguments: Annotated[
        dict[str, Any] | None, Option("--arg", parse=_parse_arguments, is_repeated=True)
    ] = None
    microbatches: Annotated[int, Option(min=1, max=4096)] = 1
    seconds: Annotated[float, Option(min=1)] = _SECONDS

    @property
    def options(self) -> dict[str, object]:
        return {
            "--record": self.program,
            "--arg": self.arguments,
            "--microbatches": self.microbatches > 1,
            "--seconds": self.seconds != _SECONDS,
        }

    def record(self, gpus: int, out: Path | None, overrides: Sequence[str], force: bool) -> None:
        from simtrain.base.output_folder import check_new, replacing, write_text, writing_to
        from simtrain.commands.printing import emit, status
        from simtrain.guests.recording.program import COMPILED, write_program
        from simtrain.guests.recording.record import RecordingRequest, record_program
        from simtrain.scenario import load_scenario

        assert self.program, "--record is given"
        script, function = self.program
        out = out or Path(f"{script.stem}.yaml")
        recording = out.with_name(f"{out.stem}{_SUFFIX}")
        check_new(out, force)
        check_new(recording, force)
        command = shlex.join(["simtrain", *sys.argv[1:]])
        request = RecordingRequest(
            script, function, gpus, self.microbatches, self.arguments or {}, self.seconds, command
        )
        scenario_text(recording.name, STACK, command, overrides)  # refuses malformed ones at once
        with status(f"recording {script}"):
            recorded = record_program(request)
        with writing_to(recording, "the recording"), replacing(recording) as unfinished:
            write_program(recorded, unfinished)
        stack = COMPILED_STACK if COMPILED in recorded.remarks else STACK
        text = scenario_text(recording.name, stack, command, overrides)
        write_text(out, text, "the scenario")
        scenario = load_scenario(out)
        num_ops = sum(len(run.ops) for runs in recorded.passes.values() for run in runs)
        emit(
            f"{out} runs {recording}: {recorded.num_parameters:,} parameters, {num_ops} different "
            f"ops, on {scenario.num_gpus} GPUs of {scenario.cluster} with "
            f"{scenario.software.stack}.\nsimtrain run {shlex.quote(str(out))}\n"
        )


CLUSTER = "h100_sxm"
STACK, COMPILED_STACK = "torchtitan", "torchtitan_compiled"
"""The software stacks of PyTorch without and with a compiler."""


def scenario_text(recording: str, stack: str, command: str, overrides: Iterable[str]) -> str:
    """Return the file of a scenario that runs a recording.

    Args:
        recording: name of the recording, which is in the same folder.
        stack: software stack.
        command: the command that recorded it.
        overrides: assignments of fields, such as "cluster=b200_sxm".

    Raises:
        InputError: an assignment is malformed.
    """
    from simtrain.base.strict_yaml import Positions, YamlDocument, apply_overrides, yaml_text
    from simtrain.scenario.section import spell_out_words

    data: dict[str, Any] = {"program": recording, "cluster": CLUSTER, "software": stack}
    document = YamlDocument(data, Positions())
    for override in overrides:
        document = apply_overrides(spell_out_words(document), [override])
    return f"# Recorded by: {' '.join(command.split())}\n{yaml_text(document.data)}"
