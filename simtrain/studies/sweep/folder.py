"""The results folder of a sweep: `sweep.json` with the plan, and `parts/` with Parquet files.

A part is written under a temporary name and renamed when complete, so a file with a part's name is
always complete, even if the run was killed.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simtrain.base.input_file import read_bytes
from simtrain.base.operating_system import try_to_lock
from simtrain.base.output_folder import replacing
from simtrain.errors import InputError, Location
from simtrain.studies.sweep.counts import Counts
from simtrain.studies.sweep.part import PartError, SweepPart, decoded
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.versions import version_words, versions

PLAN_FILE, PARTS_FOLDER = "sweep.json", "parts"
MOST_BYTES_OF_PLAN, MOST_BYTES_OF_PART = 64 << 20, 1 << 30
# Errors that mean "no space left".
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNFINISHED = re.compile(r"\.part-([0-9]{6,})-[0-9a-z]+(\.parquet)?")
_KEPT = "finished parts are kept on disk and will not be computed again"
_OTHER_FOLDER = "give another folder, or remove this one if its results are no longer needed"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """A folder with the results of one sweep.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def parts(self) -> Path:
        """The folder of the parts."""
        return self.path / PARTS_FOLDER

    def part(self, number: int) -> Path:
        """The file of a part."""
        return self.parts / f"part-{number:06}.parquet"

    def finished(self) -> tuple[list[Path], int]:
        """Return the files of the finished parts by number, and the number of points in no file.

        Raises:
            InputError: a part is damaged, or belongs to another place or sweep (E827).
        """
        if (plan := self._known()) is None:
            return [], 0
        size, num_missing = plan["part_size"], plan["num_points"]
        is_same_writer = plan["versions"].get("pyarrow") == versions()["pyarrow"]
        files = []
        for number in range(-(-num_missing // size)):
            try:
                counts = self.read(number, plan["hash"], size, is_same_writer=is_same_writer)
            except PartError as error:
                fix = "run the same simtrain sweep command again: it recomputes damaged parts"
                message = f"the results cannot be read: {self.part(number)}: {error}"
                raise self._error("E827", message, fix) from error
            if counts is not None:
                files.append(self.part(number))
                num_missing -= counts.num_points
        return files, num_missing

    def open(self, plan: SweepPlan, part_size: int | None = None) -> SweepPlan:
        """Create the folder, or resume the same sweep in it; return the plan with its part size.

        Args:
            plan: the sweep.
            part_size: the part size that the user requested, if any.

        Raises:
            InputError: the folder has another sweep's results, or cannot be written to.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            if known := self._known() or self._made_meanwhile():
                self._refuse_other(known, plan, part_size)
                plan = replace(plan, part_size=known["part_size"])
            else:
                text = json.dumps(plan.to_json(), indent=2, allow_nan=False) + "\n"
                _write(self.path / PLAN_FILE, text.encode())
            self.parts.mkdir(exist_ok=True)
        return plan

    def _made_meanwhile(self) -> Mapping[str, Any] | None:
        """Return the plan if a shard started at the same time has just written it.

        A folder that contains something else is refused (E821).
        """
        if all(entry.name.startswith(".") for entry in self.path.iterdir()):
            return None
        if (known := self._known()) is None:
            message = "the folder contains files, but no sweep"
            raise self._error("E821", message, _OTHER_FOLDER)
        return known

    def _known(self) -> Mapping[str, Any] | None:
        """Read the plan in this folder; None if there is none."""
        file = self.path / PLAN_FILE
        try:
            return _checked(json.loads(read_bytes(file, MOST_BYTES_OF_PLAN)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            message, place = f"cannot be read: {what}", Location(str(file))
            raise InputError.of("E822", message, place, _OTHER_FOLDER) from error

    def _refuse_other(
        self, known: Mapping[str, Any], plan: SweepPlan, part_size: int | None
    ) -> None:
        if known["versions"] != plan.versions:
            made, now = (version_words(versions) for versions in (known["versions"], plan.versions))
            message = f"the results here were made with {made}, this is {now}"
            raise self._error("E821", message, _OTHER_FOLDER)
        if known["hash"] != plan.digest:
            message = f'the folder contains the results of another sweep, "{known["name"]}"'
            reason = "the sweep file, a base scenario, a profile or an override differs"
            raise self._error("E821", message, _OTHER_FOLDER, reason)
        if part_size not in (None, known["part_size"]):
            message = f"the results here are cut into parts of {known['part_size']} points"
            fix = f"remove --part-size, or write {known['part_size']}"
            raise self._error("E821", message, fix)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock; the system releases it even if this process is killed.

        A lock of another process (E823) or a file system without locks (E829) is refused.
        """
        with self._writing():
            file = (self.path / f".lock-{name}").open("ab")
        with file:
            try:
                is_locked = try_to_lock(file)
            except OSError as error:
                message = f"files in this folder cannot be locked: {error.strerror}"
                fix = "use a folder on another file system, or mount this one with locks"
                raise self._error("E829", message, fix) from error
            if not is_locked:
                message = "this sweep is already running in this folder"
                fix = "wait for it or stop it; several runs can share the work with --shard i/n"
                raise self._error("E823", message, fix)
            yield

    def read(
        self, number: int, sweep: str, part_size: int, *, is_same_writer: bool = True
    ) -> Counts | None:
        """Validate a part's file as `decoded` does, and return its counts; None if it has no file.

        Raises:
            PartError: the file cannot be read, is damaged, or belongs to another part or sweep.
        """
        try:
            content = read_bytes(self.part(number), MOST_BYTES_OF_PART)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PartError(str(error)) from error
        return decoded(content, sweep, number, part_size, is_same_writer=is_same_writer)

    def write(self, part: SweepPart) -> None:
        """Write a part's file atomically."""
        with self._writing():
            _write(self.part(part.number), part.content)

    def remove_leftovers(self, numbers: Container[int]) -> None:
        """Remove unfinished files of these parts, left by a killed run."""
        with self._writing():
            for file in self.parts.glob(".part-*"):
                # Other programs' hidden files are not ours to remove.
                match = _UNFINISHED.fullmatch(file.name)
                if match and int(match[1]) in numbers:
                    file.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in _NO_SPACE
            what = "no space left" if full else "cannot write the results here"
            fix = "make the folder writable and"
            if full:
                fix = "make space and"
            elif isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
                fix = "move the file that is in the way, and"
            code, reason = "E825" if full else "E824", _KEPT if self.parts.is_dir() else None
            message = f"{what}: {error.strerror}"
            raise self._error(code, message, f"{fix} run the same command again", reason) from error

    def _error(self, code: str, message: str, fix: str, reason: str | None = None) -> InputError:
        return InputError.of(code, message, Location(str(self.path)), fix, reason)


def _checked(known: Any) -> Mapping[str, Any]:
    """Validate a sweep.json and return the fields that are needed.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or invalid.
    """
    if not isinstance(known, dict):
        raise TypeError("it does not contain a sweep's plan")
    types = {"hash": str, "name": str, "versions": dict, "part_size": int, "num_points": int}
    for name, expected in types.items():
        if type(known[name]) is not expected:
            raise TypeError(f"{name} is {json.dumps(known[name])}, but must be {expected.__name__}")
    if (part_size := known["part_size"]) < 1:
        raise ValueError(f"part_size is {part_size}, but must be 1 or more")
    return {name: known[name] for name in types}


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically: it exists complete, or not at all."""
    with replacing(path, f".{path.stem}") as unfinished, unfinished.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
