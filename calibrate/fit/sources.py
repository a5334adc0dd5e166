"""What `fit` is given, and the records of one machine that several sources have together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from calibrate.records.file import identity, read_records
from calibrate.records.kineto import read_trace
from calibrate.records.nccl_tests import is_log, read_log
from calibrate.records.schema import FILE_NAME, Header, Measurement
from simtrain.errors import InputError, Location
from simtrain.guests.traces.events import is_trace, trace_files
from simtrain.units import format_seconds


class SourceKind(Enum):
    """A kind of source, in words."""

    FOLDER = "a folder of measurements"
    TRACE = "a trace"
    LOG = "a log of nccl-tests"
    FIGURES = "a file of figures"
    RUNS = "a table of runs"


def kind_of(source: Path) -> SourceKind:
    """Recognize a source by its name, or by its beginning."""
    if (source / FILE_NAME).exists():
        return SourceKind.FOLDER
    if is_trace(source):
        return SourceKind.TRACE
    if source.is_dir() or not (source.suffix or source.exists()):
        return SourceKind.FOLDER  # whose reader says what it lacks
    if source.suffix in (".yaml", ".yml"):
        return SourceKind.FIGURES
    return SourceKind.LOG if is_log(source) else SourceKind.RUNS


def by_kind(sources: Iterable[Path]) -> Mapping[SourceKind, Sequence[Path]]:
    """Sort sources by their kinds.

    Raises:
        InputError: E723, there are kinds that no fit takes together.
    """
    kinds = defaultdict[SourceKind, list[Path]](list)
    for source in sources:
        kinds[kind_of(source)].append(source)
    alone = kinds.keys() & {SourceKind.FIGURES, SourceKind.RUNS}
    if alone and (len(kinds) > 1 or len(kinds[SourceKind.FIGURES]) > 1):
        both = " and ".join(f"{kind.value} ({files[0]})" for kind, files in kinds.items())
        message = f"one fit does not take {both} together"
        fix = "give a folder with traces and logs, or tables of runs, or one file of figures"
        raise InputError.of("E723", message, fix=fix)
    return kinds


@dataclass(frozen=True, slots=True)
class MachineRecords:
    """The records of one machine, each once, and what traces have besides, in words."""

    header: Header
    records: Sequence[Measurement]
    left_out: Sequence[str]


def machine_records(
    kinds: Mapping[SourceKind, Sequence[Path]], gpus_per_node: int
) -> MachineRecords:
    """Read the folders, traces and logs of nccl-tests of a machine.

    Args:
        kinds: the sources; a folder or a trace is among them.
        gpus_per_node: GPUs of a node, which traces do not say.

    Raises:
        InputError: a source cannot be read, or is of another machine than the first (E712).
    """
    headers, left_out = list[tuple[Path, Header]](), list[str]()
    records = dict[str, Measurement]()
    for folder in kinds.get(SourceKind.FOLDER, ()):
        header, of_folder = read_records(folder)
        headers.append((folder, header))
        records |= {identity(record): record for record in of_folder}
    for file in (file for path in kinds.get(SourceKind.TRACE, ()) for file in trace_files(path)):
        trace = read_trace(file, gpus_per_node)
        headers.append((file, trace.header))
        records = {identity(record): record for record in trace.records} | records
        for reason, seconds in sorted(trace.left_out.items(), key=lambda item: -item[1]):
            left_out.append(f"{file}: {format_seconds(seconds)} of {reason}")
    (first, header), *others = headers
    devices = [(path, other.device) for path, other in others]
    for path in kinds.get(SourceKind.LOG, ()):
        log = read_log(path)
        devices.append((path, log.device))
        records = {identity(record): record for record in log.records} | records
    for path, device in devices:
        if device != header.device:
            reason = f"{first} was measured on {header.device}, and {path} on {device}"
            fix = f"leave it out; fit {path} alone, with --base PROFILE"
            message = f"it is of another machine than {first}"
            raise InputError.of("E712", message, Location(str(path)), fix, reason)
    return MachineRecords(header, [*records.values()], left_out)
