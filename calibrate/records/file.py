"""Writes and reads the file of a measurement: a header, then one record a line (`schema`)."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from calibrate.records.schema import (
    FILE_NAME,
    RECORD,
    Header,
    Measurement,
    Record,
    Timing,
)
from simtrain.base.input_file import read_bytes
from simtrain.errors import InputError, Location, Problem

_MOST_BYTES = 1 << 30
_TAKEN = {"peak_bytes", "reserved_over_allocated", "outside_allocator_bytes"}
"""Measured fields that are no timings."""


@dataclass(frozen=True, slots=True)
class MeasurementPoint:
    """A measurement to take: its kind of record, its naming fields, a function of the others."""

    kind: type[BaseModel]
    what: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]

    @property
    def identity(self) -> str:
        return identity(self.kind.model_construct(**self.what))

    def record(self) -> Any:
        """Measure it, and return its record."""
        return self.kind(**self.what, **self.measure())


def identity(record: BaseModel) -> str:
    """The fields that name the measured work, defaults included, without the results."""
    fields = type(record).model_fields.items()
    results = {name for name, field in fields if field.annotation is Timing} | _TAKEN
    return json.dumps(record.model_dump(exclude=results), sort_keys=True)


def read_records(folder: Path) -> tuple[Header, list[Measurement]]:
    """Header and records of a folder; a last line that has no end is dropped.

    Raises:
        InputError: E710, no file that can be read; E717, a line that is no record.
    """
    path, records = folder / FILE_NAME, list[Record]()
    for number, line in enumerate(_complete_lines(path), 1):
        reasons = []
        try:
            records.append(RECORD.validate_json(line))
        except ValidationError as error:
            places = [(".".join(map(str, e["loc"][1:])), e["msg"]) for e in error.errors()]
            reasons = [f"{field}: {message}".removeprefix(": ") for field, message in places]
        else:
            is_header = isinstance(records[-1], Header)
            if is_header != (number == 1):
                first = "the first line must be the header"
                reasons = ["a header after the first line" if is_header else first]
        if reasons:
            place = Location(str(path), number, 1, line)
            message = "the line is no record of a measurement"
            fix = "delete the line; simtrain calibrate measure measures what it held again"
            raise InputError(Problem("E717", message, place, reason, fix) for reason in reasons)
    header, *measurements = records
    assert isinstance(header, Header), "the first line is checked"
    return header, [record for record in measurements if not isinstance(record, Header)]


class RecordFile:
    """The file of a measurement; each record is on disk before the next is measured."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Begin the file, or continue what the same machine has measured before.

        Raises:
            InputError: E712, the records are another machine's; E713, it cannot be written; or as
                `read_records`.
        """
        self.path = folder / FILE_NAME
        with _writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            content = read_bytes(self.path, _MOST_BYTES) if self.path.exists() else b""
            complete = content.rfind(b"\n") + 1
            if complete < len(content):
                os.truncate(self.path, complete)
        self.header, self._records = header, dict[str, Measurement]()
        if complete:
            self.header, records = read_records(folder)
            _check_same_machine(self.path, self.header, header)
            self._records = {identity(record): record for record in records}
        else:
            _write_to_disk(self.path, [header])

    @property
    def records(self) -> list[Measurement]:
        return list(self._records.values())

    @property
    def known(self) -> set[str]:
        return set(self._records)

    def write(self, record: Measurement) -> None:
        """Write a record; if one has its identity, write the whole file anew without that one.

        Raises:
            InputError: E713, it cannot be written (the disk is full, say); the file stays.
        """
        records = self._records | {identity(record): record}
        if len(records) > len(self._records):
            _write_to_disk(self.path, [record])
        else:
            unfinished = self.path.with_suffix(".new")
            with _writing(self.path):
                unfinished.unlink(missing_ok=True)
                _write_to_disk(unfinished, [self.header, *records.values()])
                unfinished.replace(self.path)
        self._records = records


def _write_to_disk(path: Path, records: Sequence[Record]) -> None:
    with _writing(path), path.open("ab") as file:
        file.writelines(record.model_dump_json().encode() + b"\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def _complete_lines(path: Path) -> list[str]:
    try:
        content = read_bytes(path, _MOST_BYTES)
        lines = content[: content.rfind(b"\n") + 1].decode().splitlines()
        reason = "" if lines else "it has no complete line"
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8: {error.reason}"
    if reason:
        fix = f"simtrain calibrate measure -o {path.parent}"
        raise InputError.of("E710", "no measurements to read", Location(str(path)), fix, reason)
    return lines


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "make room or choose another -o; the records stay, and the same command continues"
        message, reason = "the measurements cannot be written", error.strerror or str(error)
        raise InputError.of("E713", message, Location(str(path)), fix, reason) from error


def _check_same_machine(path: Path, other: Header, header: Header) -> None:
    """Raise InputError if two headers differ in a fact that every time depends on."""
    facts = {"ranks": "num_ranks", "nodes": "num_nodes", "multiprocessors or threads": "num_sms"}
    pairs = [
        (name, getattr(other, field), getattr(header, field))
        for name, field in ({"device": "device", "backend": "backend"} | facts).items()
    ]
    pairs.append(("torch", other.software.get("torch"), header.software.get("torch")))
    pairs.append(("data type", other.compute, header.compute))
    differences = [f"{name} {was} there, {now} here" for name, was, now in pairs if was != now]
    if differences:
        message = "the folder holds the measurements of another machine"
        fix, reason = "give this measurement an -o of its own", "; ".join(differences)
        raise InputError.of("E712", message, Location(str(path), 1), fix, reason)
