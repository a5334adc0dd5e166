"""Files of other tools as the scenarios of commands: what they leave open, and what to write."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.base.values import replace
from simtrain.commands.options import refuse
from simtrain.commands.printing import emit
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.base.importer import Importer, ImportRequest
    from simtrain.scenario import Scenario

_BYTES_PER_PARAMETER, _BYTES_PER_GPU, _FEWEST_GPUS = 18, 40e9, 8
"""Of mixed precision with Adam; half of the memory of a GPU leaves room for activations."""
_USUAL_LENGTH, _USUAL_TOKENS = 8192, 1 << 22
"""Tokens of a sequence and of a batch that models are trained with."""
_MOST_NAMES = 5


def load_imported(
    importer: Importer,
    request: ImportRequest,
    gpus: int | None,
    scale_batch: bool,
    is_layout_open: bool,
) -> Scenario:
    """Import the file of another tool for a command, unchecked, and say what was read on stderr.

    Settings that simtrain does not know are left out.

    Args:
        importer: what reads the file.
        request: the file and what it leaves open.
        gpus: number of GPUs, as for `with_gpus`.
        scale_batch: whether the global batch grows with them.
        is_layout_open: whether the layout is to be chosen.

    Raises:
        InputError: the file, the overrides or the options are wrong, or the source leaves the
            machine, the batch or, unless the layout is open, the number of GPUs open (E881).
    """
    from simtrain.studies.changes import with_gpus

    request = prepared(request, importer)
    if gpus and _is_open(importer, request):
        what = "has no effect: the file does not say its own number of GPUs"
        refuse({"--scale-batch": scale_batch}, what)
        request, gpus = replace(request, gpus=gpus), None
    return with_gpus(_import(importer, request, is_layout_open), gpus, scale_batch)


def prepared(request: ImportRequest, importer: Importer) -> ImportRequest:
    """Refuse options that an importer does not read; with --capture, run the script."""
    request.check_read_by(importer)
    return importer.captured(request) if request.capture else request


def next_line(scenario: Scenario, file: Path, importer: Importer, overrides: Iterable[str]) -> str:
    """Return a command that answers for an imported scenario: run it if it fits, else search.

    A model's config has the longest sequences of the model: a search takes usual ones.

    Args:
        scenario: the scenario.
        file: the file that it was written to.
        importer: what it was read with.
        overrides: assignments of --set, which are in the file.
    """
    from simtrain.studies.simulation import simulate_memory

    is_open = importer.is_model and scenario.num_gpus == 1
    if not is_open and simulate_memory(scenario).fits:
        return shlex.join(["simtrain", "run", str(file)])
    gpus = _enough_gpus(scenario, _FEWEST_GPUS if is_open else scenario.num_gpus)
    words = ["simtrain", "search", str(file), "--gpus", str(gpus)]
    if importer.is_model:
        words += _usual_batch(scenario, gpus, [*overrides])
    elif importer.reads_model and scenario.model.seq_length > _USUAL_LENGTH:
        words += ["--set", f"model.seq_length={_USUAL_LENGTH}"]
    return shlex.join(words)


def _enough_gpus(scenario: Scenario, gpus: int) -> int:
    """Return a number of GPUs, or a multiple of it whose memory holds the states of a model."""
    from simtrain.iteration.plan import Plan

    states_bytes = _BYTES_PER_PARAMETER * Plan.of(scenario, _FEWEST_GPUS).num_parameters
    while gpus * _BYTES_PER_GPU < states_bytes:
        gpus *= 2
    return gpus


def _usual_batch(scenario: Scenario, gpus: int, options: Sequence[str]) -> list[str]:
    """Return the options of a usual length, batch and cluster that are not set already."""
    length = scenario.model.seq_length
    fields = {"model.seq_length": str(min(length, _USUAL_LENGTH))}
    if not _sets("model.seq_length", options):
        length = min(length, _USUAL_LENGTH)
    fields |= {"batch.global": str(_usual_sequences(scenario, length, gpus))}
    fields["cluster"] = "h100_sxm"
    open_fields = {name: value for name, value in fields.items() if not _sets(name, options)}
    return [word for name, value in open_fields.items() for word in ("--set", f"{name}={value}")]


def _usual_sequences(scenario: Scenario, length: int, least: int) -> int:
    """Return a usual batch of at least this many sequences that the stages and replicas share."""
    step = scenario.batch.micro * scenario.parallelism.data * scenario.parallelism.pipeline
    return -(-max(_USUAL_TOKENS // length, least) // step) * step


def _sets(field: str, options: Sequence[str]) -> bool:
    return any(option.removeprefix("--set=").startswith(f"{field}=") for option in options)


def _import(importer: Importer, request: ImportRequest, is_layout_open: bool) -> Scenario:
    """Return the scenario of a source after overrides, unchecked."""
    request, source = replace(request, ignore_unknown=True), request.file
    draft = importer.draft(request)
    scenario: Scenario = draft.scenario().replace({"name": Path(source).stem})
    if not is_layout_open and _has_default_layout(importer, draft):
        if importer.is_model:
            gpus = _enough_gpus(scenario, request.gpus or _FEWEST_GPUS)
            options = [word for override in request.overrides for word in ("--set", override)]
            words = ["simtrain", "search", request.file, "--gpus", str(gpus), *options]
            line = shlex.join([*words, *_usual_batch(scenario, gpus, options)])
            raise _open(source, "the layout and the batch: it describes a model alone", line)
        line = _command("--set", "parallelism.data=1", *_machine_option(draft))
        raise _open(source, "how many GPUs it uses", line)
    if draft.is_default("batch.global"):
        words = _usual_batch(scenario, _FEWEST_GPUS, sys.argv)
        if not importer.is_model:
            number = _usual_sequences(scenario, scenario.model.seq_length, 1)
            words = ["--set", f"batch.global={number}", *_machine_option(draft)]
        raise _open(source, "the batch", _command(*words))
    check_machine(draft, source)
    _say_what_was_read(draft, source)
    return scenario


def _command(*options: str) -> str:
    """Return the command line with more options."""
    return shlex.join(["simtrain", *sys.argv[1:], *options])


def check_machine(draft: Any, source: str, *, in_python: bool = False) -> None:
    """Refuse a source that does not say its machine, on which every time depends (E881)."""
    if draft.unknown_machine:
        first, second = (f"cluster={name}" for name in draft.likely_clusters)
        lines = f"{_command('--set', first)}; or {_command('--set', second)}"
        lines = f'write overrides=["{first}"], or ["{second}"]' if in_python else lines
        raise InputError.of("E881", draft.unknown_machine, Location(source), lines)


def _is_open(importer: Importer, request: ImportRequest) -> bool:
    """Whether a source does not say its number of GPUs, which --gpus then decides."""
    try:
        draft = importer.draft(replace(request, ignore_unknown=True))
    except InputError:
        return True
    return _has_default_layout(importer, draft)


def _has_default_layout(importer: Importer, draft: Any) -> bool:
    axes = ("tensor", "pipeline", "data") if importer.is_model else ("data",)
    return all(draft.is_default(f"parallelism.{axis}") for axis in axes)


def _machine_option(draft: Any) -> list[str]:
    return ["--set", f"cluster={draft.likely_clusters[0]}"] if draft.unknown_machine else []


def _open(source: str, what: str, line: str) -> InputError:
    return InputError.of("E881", f"the file does not say {what}", Location(source), line)


def say_assumptions(draft: Any) -> None:
    """Say what a source leaves open and its scenario takes for granted."""
    for text in draft.assumptions:
        emit(f"{text}.\n", sys.stderr)


def _say_what_was_read(draft: Any, source: str) -> None:
    say_assumptions(draft)
    names = [*dict.fromkeys(draft.ignored)]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    ignored = f"; not modelled: {', '.join(names[:_MOST_NAMES])}{more}" if names else ""
    line = f"Imported {source}: {draft.num_settings} settings{ignored}"
    command = f"simtrain import {shlex.quote(source)}"
    emit(f"{line}. {command} says where each value comes from.\n", sys.stderr)
