"""Writes and reads the file of a measurement: a header, then one record a line (`schema`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from calibrate.records.schema import FILE_NAME, RECORD, Header, Measurement, Record, Timing
from simtrain.errors import InputError, Location, Problem

_TAKEN = {"peak_bytes", "reserved_over_allocated", "outside_allocator_bytes"}
"""Measured fields that are no timings."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement to take: its kind of record, its naming fields, a function of the others."""

    kind: type[BaseModel]
    what: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]

    @property
    def identity(self) -> str:
        """The fields that name it, defaults written out; equal to the identity of its record."""
        return _identity(
            {name: self.what.get(name, default) for name, default in _naming_fields(self.kind)}
        )

    def record(self, measured: Mapping[str, Any]) -> Measurement:
        """The record of what `measure` returned."""
        record = self.kind(**self.what, **measured)
        assert not isinstance(record, Header)
        return record  # type: ignore[return-value]  # a kind is one of Measurement's


def identity(record: Measurement) -> str:
    """The fields that name the measured work, without the results."""
    names = {name for name, _ in _naming_fields(type(record))}
    return _identity(record.model_dump(include=names))


def read_records(folder: Path) -> tuple[Header, list[Measurement]]:
    """Header and records of a folder; a last line that has no end is dropped.

    Raises:
        InputError: E710, no file that can be read; E717, a line that is no record.
    """
    path = folder / FILE_NAME
    lines = _complete_lines(path)
    header, *records = (_parse(path, number, line) for number, line in enumerate(lines, 1))
    if not isinstance(header, Header):
        raise InputError([_not_a_record(path, 1, lines[0], "the first line must be the header")])
    measurements: list[Measurement] = []
    for number, record in enumerate(records, 2):
        if isinstance(record, Header):
            reason = "a header after the first line"
            raise InputError([_not_a_record(path, number, lines[number - 1], reason)])
        measurements.append(record)
    return header, measurements


class RecordFile:
    """The file of a measurement; each record is on disk before the next is measured."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Begin the file, or continue what the same machine has measured before.

        Raises:
            InputError: E712, the records are another machine's; E713, it cannot be written; or as
                `read_records`.
        """
        self.path = folder / FILE_NAME
        self.records: list[Measurement] = []
        with _writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            resumes = self._drop_torn_line()
        if resumes:
            found, self.records = read_records(folder)
            _check_same_machine(self.path, found, header)
        else:
            self._write(header)

    @property
    def known(self) -> set[str]:
        """Identities of the records."""
        return {identity(record) for record in self.records}

    def append(self, record: Measurement) -> None:
        """Write a record.

        Raises:
            InputError: E713, it cannot be written (the disk is full, say).
        """
        self._write(record)
        self.records.append(record)

    def replace(self, record: Measurement) -> None:
        """Replace the record with the same identity, by writing the whole file anew.

        Raises:
            InputError: E713, as `append`; the file stays as it was.
        """
        replaced = identity(record)
        records = [record if identity(each) == replaced else each for each in self.records]
        with _writing(self.path):
            header = self.path.read_bytes().partition(b"\n")[0] + b"\n"
            unfinished = self.path.with_suffix(".new")
            lines = (record.model_dump_json().encode() + b"\n" for record in records)
            _write_to_disk(unfinished, "wb", header + b"".join(lines))
            unfinished.replace(self.path)
        self.records = records

    def _write(self, record: Record) -> None:
        with _writing(self.path):
            _write_to_disk(self.path, "ab", record.model_dump_json().encode() + b"\n")

    def _drop_torn_line(self) -> bool:
        """Cut the file after its last complete line; True if anything is left."""
        if not self.path.exists():
            return False
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        return whole > 0


def _write_to_disk(path: Path, mode: Literal["wb", "ab"], content: bytes) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _naming_fields(kind: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """The fields that name the measured work, and their defaults."""
    for name, field in kind.model_fields.items():
        if field.annotation is not Timing and name not in _TAKEN:
            yield name, field.default


def _identity(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def _complete_lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1].decode().splitlines()
        reason = "" if lines else "it has no complete line"
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8: {error.reason}"
    if reason:
        fix = f"python -m calibrate measure --out {path.parent}"
        raise InputError.of("E710", "no measurements to read", Location(str(path)), fix, reason)
    return lines


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


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise InputError if the file system does not let the file be written."""
    try:
        yield
    except OSError as error:
        fix = "make room or choose another --out; the records stay, and the same command continues"
        raise InputError.of(
            "E713",
            "the measurements cannot be written",
            Location(str(path)),
            fix,
            error.strerror or str(error),
        ) from error


def _check_same_machine(path: Path, found: Header, header: Header) -> None:
    """Raise InputError if two headers differ in a fact that every time depends on."""
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
        raise InputError.of(
            "E712",
            "the folder holds the measurements of another machine",
            Location(str(path), 1),
            "give this measurement an --out of its own",
            "; ".join(differences),
        )
