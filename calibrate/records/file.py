"""Writes and reads the file of a measurement: a header, then one record a line (`records`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from calibrate.records.schema import FILE_NAME, RECORD, Header, Measurement, Record, Timing
from simtrain.errors import InputError, Location, Problem

_TAKEN = {"peak_bytes", "reserved_over_allocated", "outside_allocator_bytes"}
"""Fields that are measured, beside those that are timings."""


@dataclass(frozen=True, slots=True)
class Point:
    """Something to measure: a kind of record, its fields that say what, and how to get the rest."""

    kind: type[BaseModel]
    what: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]

    @property
    def identity(self) -> str:
        """What is measured, defaults written out; equal to that of the record it becomes."""
        return _identity(
            {
                name: self.what.get(name, field.default)
                for name, field in self.kind.model_fields.items()
                if _says_what(name, field.annotation)
            }
        )

    def record(self, measured: Mapping[str, Any]) -> Measurement:
        """The record of what `measure` returned."""
        record = self.kind(**self.what, **measured)
        assert not isinstance(record, Header)
        return record  # type: ignore[return-value]  # a kind is one of Measurement's


def identity(record: Measurement) -> str:
    """What was measured: the record without what was found."""
    fields = type(record).model_fields
    names = {name for name, field in fields.items() if _says_what(name, field.annotation)}
    return _identity(record.model_dump(include=names))


def read_records(folder: Path) -> tuple[Header, list[Measurement]]:
    """Header and records of a folder; a last line that has no end is dropped.

    Raises:
        InputError: E710, no file that can be read; E717, a line that is no record.
    """
    path = folder / FILE_NAME
    lines = _complete_lines(path, _content(path))
    if not lines:
        raise InputError([_no_records(path, "it has no complete line")])
    header, *measurements = (_parse(path, number, line) for number, line in enumerate(lines, 1))
    if not isinstance(header, Header):
        raise InputError([_not_a_record(path, 1, lines[0], "the first line must be the header")])
    found: list[Measurement] = []
    for number, record in enumerate(measurements, 2):
        if isinstance(record, Header):
            line = lines[number - 1]
            raise InputError([_not_a_record(path, number, line, "a header after the first line")])
        found.append(record)
    return header, found


class RecordFile:
    """The file that a measurement appends to, each record whole and on disk before the next."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Begin the file, or go on with what the same machine has measured before.

        Raises:
            InputError: E712, the records are another machine's; E713, it cannot be written; or as
                `read_records`.
        """
        self.path = folder / FILE_NAME
        self.records: list[Measurement] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.resumes = self._drop_torn_line()
        except OSError as error:
            raise InputError([_cannot_write(self.path, error)]) from error
        if self.resumes:
            found, self.records = read_records(folder)
            _check_same_machine(self.path, found, header)
        else:
            self._write(header)

    @property
    def known(self) -> set[str]:
        """Identities of what has been measured."""
        return {identity(record) for record in self.records}

    def append(self, record: Measurement) -> None:
        """Write a record.

        Raises:
            InputError: E713, it cannot be written (the disk is full, say).
        """
        self._write(record)
        self.records.append(record)

    def replace(self, record: Measurement) -> None:
        """Put a record in the place of that of the same, the whole file at once.

        Raises:
            InputError: E713, as `append`; the file stays as it was.
        """
        found = [identity(each) for each in self.records].index(identity(record))
        records = [*self.records[:found], record, *self.records[found + 1 :]]
        try:
            header = self.path.read_bytes().partition(b"\n")[0] + b"\n"
            beside = self.path.with_suffix(".new")
            with beside.open("wb") as file:
                file.write(header + b"".join(map(_line, records)))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            raise InputError([_cannot_write(self.path, error)]) from error
        self.records = records

    def _write(self, record: Record) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(_line(record))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError([_cannot_write(self.path, error)]) from error

    def _drop_torn_line(self) -> bool:
        """Cut off what comes after the last end of a line; whether anything is left."""
        if not self.path.exists():
            return False
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        return whole > 0


def _line(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _says_what(name: str, annotation: Any) -> bool:
    return annotation is not Timing and name not in _TAKEN


def _identity(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError([_no_records(path, error.strerror or str(error))]) from error


def _complete_lines(path: Path, content: bytes) -> list[str]:
    try:
        return content[: content.rfind(b"\n") + 1].decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError([_no_records(path, f"it is not UTF-8: {error.reason}")]) from error


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        return RECORD.validate_json(line)
    except ValidationError as error:
        problems = [_not_a_record(path, number, line, _reason(found)) for found in error.errors()]
        raise InputError(problems) from error


def _reason(found: Any) -> str:
    field = ".".join(str(part) for part in found["loc"][1:])
    return f"{field}: {found['msg']}" if field else str(found["msg"])


def _not_a_record(path: Path, number: int, line: str, reason: str) -> Problem:
    return Problem(
        "E717",
        "the line is no record of a measurement",
        Location(str(path), number, 1, line),
        reason,
        "delete the line; python -m calibrate measure measures what it held again",
    )


def _no_records(path: Path, reason: str) -> Problem:
    fix = f"python -m calibrate measure --out {path.parent}"
    return Problem("E710", "no measurements to read", Location(str(path)), reason, fix)


def _cannot_write(path: Path, error: OSError) -> Problem:
    return Problem(
        "E713",
        "the measurements cannot be written",
        Location(str(path)),
        error.strerror or str(error),
        "make room or choose another --out; what was written stays, and the same command goes on",
    )


def _check_same_machine(path: Path, found: Header, header: Header) -> None:
    """Raises InputError where two headers differ in what decides every time."""
    differences = [
        f"{name} {was} there, {now} here"
        for name, was, now in (
            ("device", found.device, header.device),
            ("ranks", found.num_ranks, header.num_ranks),
            ("nodes", found.num_nodes, header.num_nodes),
            ("backend", found.backend, header.backend),
            ("multiprocessors or threads", found.num_sms, header.num_sms),
            ("torch", found.software.get("torch"), header.software.get("torch")),
        )
        if was != now
    ]
    if differences:
        reason = "; ".join(differences)
        problem = Problem(
            "E712",
            "the folder holds the measurements of another machine",
            Location(str(path), 1),
            reason,
            "give this measurement an --out of its own",
        )
        raise InputError([problem])
