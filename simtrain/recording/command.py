"""`simtrain import torch`."""

from __future__ import annotations

import ast
import json
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from simtrain.commands.declare import Written
from simtrain.commands.options import OutOption, SetOption, refuse
from simtrain.errors import InputError, Location

_SUFFIX = ".program.json.gz"


def _parse_program(text: str, option: str) -> tuple[Path, str]:
    """Read SCRIPT.py:FUNCTION."""
    script, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier():
        message = f'"{text}" names no function of a Python file'
        fix = f"write {text.rstrip(':') or 'train.py'}:FUNCTION, such as train.py:main"
        raise InputError.of("E950", message, Location("SCRIPT.py:FUNCTION"), fix)
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


def _source(
    program: tuple[Path, str] | None, config: Path | None, of_config: dict[str, bool]
) -> tuple[Path, str]:
    """Return the script and its function, or a config and no function."""
    if config is not None:
        refuse({"SCRIPT.py:FUNCTION": program}, "has no effect with --hf")
        return config, ""
    refuse(of_config, "is only for --hf", "parallelize the model in the program")
    if program is None:
        fix = "write SCRIPT.py:FUNCTION, or --hf config.json"
        raise InputError.of("E903", "a program is missing", Location("SCRIPT.py:FUNCTION"), fix)
    return program


def import_torch(
    program: Annotated[
        tuple[Path, str] | None,
        typer.Argument(metavar="SCRIPT.py:FUNCTION"),
        Written(_parse_program),
    ] = None,
    *,
    hf: Annotated[Path | None, typer.Option(metavar="CONFIG.json")] = None,
    fsdp: bool = False,
    tp: Annotated[int, typer.Option(min=1)] = 1,
    ep: Annotated[int, typer.Option(min=1)] = 1,
    gpus: Annotated[int, typer.Option(min=1, max=1 << 20)] = 1,
    microbatches: Annotated[int, typer.Option(min=1, max=4096)] = 1,
    arguments: Annotated[
        dict[str, Any] | None, typer.Option("--arg"), Written(_parse_arguments, list[str])
    ] = None,
    out: OutOption = None,
    overrides: SetOption = None,
    seconds: Annotated[float, typer.Option(min=1)] = 600.0,
    force: bool = False,
) -> None:
    """Record a training step of any torch program, without GPUs, as a scenario.

    Args:
        program: the Python file and its function, which returns (model, batch, loss, optimizer).
        hf: the config of a model of Hugging Face transformers, in place of a program. Arguments are
            sequences (1) and tokens.
        fsdp: for --hf, shard each layer with fully_shard.
        tp: for --hf, ranks that share each layer, by the model's own plan.
        ep: for --hf, ranks among which experts are divided, by the model's own plan.
        gpus: number of ranks of the process group.
        microbatches: how often forward and backward pass run before the optimizer, which adds up
            their gradients.
        arguments: a keyword argument of the function, such as layers=32. May be repeated.
        out: scenario to write, with the recording beside it. Default: the script's name, here.
        seconds: how long the program may run.
        force: replace the files if they exist.

    This runs the program, as python SCRIPT.py does, in a process of its own: with torch on its CPU,
    on tensors without values and in a process group without other processes. The function builds
    and parallelizes the model as it does on GPUs; its loss(model, batch) is a scalar.

    Example: simtrain import torch train.py:main --gpus 64 --arg layers=32 -o run.yaml

    Example: simtrain import torch --hf config.json --gpus 8 --fsdp --arg sequences=4
    """
    from simtrain.base.output_folder import check_new, replacing, write_text, writing_to
    from simtrain.commands.printing import emit, status
    from simtrain.recording.program import write_program
    from simtrain.recording.record import RecordingRequest, record_program
    from simtrain.scenario import load_scenario

    script, function = _source(program, hf, {"--fsdp": fsdp, "--tp": tp > 1, "--ep": ep > 1})
    out = out or Path(f"{script.stem}.yaml")
    recording = out.with_name(f"{out.stem}{_SUFFIX}")
    check_new(out, force)
    check_new(recording, force)
    command = shlex.join(["simtrain", *sys.argv[1:]])
    values = dict(arguments or {})
    if hf is not None:
        values |= {"fsdp": fsdp, "tensor": tp, "experts": ep}
    request = RecordingRequest(script, function, gpus, microbatches, values, seconds, command)
    scenario_text(recording.name, command, overrides or ())  # refuses malformed ones at once
    with status(f"recording {script}"):
        recorded = record_program(request)
    with writing_to(recording, "the recording"), replacing(recording) as unfinished:
        write_program(recorded, unfinished)
    text = scenario_text(recording.name, command, overrides or ())
    write_text(out, text, "the scenario", read=load_scenario)
    scenario = load_scenario(out)
    num_ops = sum(len(run.ops) for runs in recorded.passes.values() for run in runs)
    emit(
        f"{out} runs {recording}: {recorded.num_parameters:,} parameters, {num_ops} different "
        f"ops, on {scenario.num_gpus} GPUs of {scenario.cluster} with {scenario.software.stack}.\n"
        f"simtrain run {shlex.quote(str(out))}\n"
    )


CLUSTER, SOFTWARE = "h100_sxm", "torchtitan"
"""Defaults: torchtitan's software stack is PyTorch without a compiler."""


def scenario_text(recording: str, command: str, overrides: Iterable[str]) -> str:
    """Return the file of a scenario that runs a recording.

    Args:
        recording: name of the recording, which is in the same folder.
        command: the command that recorded it.
        overrides: assignments of fields, such as "cluster=b200_sxm".

    Raises:
        InputError: an assignment is malformed.
    """
    from simtrain.base.strict_yaml import Positions, YamlDocument, apply_overrides, yaml_text
    from simtrain.scenario.section import spell_out_words

    data: dict[str, Any] = {"program": recording, "cluster": CLUSTER, "software": SOFTWARE}
    document = YamlDocument(data, Positions())
    for override in overrides:
        document = apply_overrides(spell_out_words(document), [override])
    return f"# Recorded by: {' '.join(command.split())}\n{yaml_text(document.data)}"
