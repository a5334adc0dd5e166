"""The folder of a sweep's results: `sweep.json`, which says what they are, and `parts/`.

A part is written under another name and renamed, so that what has the name of a part is a whole
one, whenever the run was cut off.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simtrain.errors import InputError, Location, Problem
from simtrain.sweep.counts import Counts
from simtrain.sweep.part import Part, PartError, decoded
from simtrain.sweep.plan import Plan, version_words
from simtrain.system import try_to_lock

PLAN_FILE, PARTS_FOLDER = "sweep.json", "parts"
# What the system says when nothing more can be written, for whatever reason.
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PART = re.compile(r"part-([0-9]{6,})\.parquet")
_UNFINISHED = re.compile(r"\.part-([0-9]{6,})-[0-9a-z]+")
_OTHER_FOLDER = "give another folder, or remove this one if its results are no longer needed"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """A folder that holds the results of one sweep."""

    path: Path

    @property
    def parts(self) -> Path:
        """Where the parts are."""
        return self.path / PARTS_FOLDER

    def part(self, number: int) -> Path:
        """The file of a part."""
        return self.parts / f"part-{number:06}.parquet"

    def finished(self) -> list[Path]:
        """The parts that are here, by number; not what else lies beside them, such as copies.

        Raises:
            InputError: sweep.json cannot be read, so that it is not known how many there may be.
        """
        if (known := self._known()) is None:
            return []
        num_parts = -(-known["num_points"] // known["part_size"])
        named = ((_PART.fullmatch(file.name), file) for file in self.parts.glob("part-*"))
        numbered = ((int(match[1]), file) for match, file in named if match)
        return [file for number, file in sorted(numbered) if number < num_parts]

    def open(self, plan: Plan, part_size: int | None = None) -> Plan:
        """Make the folder one of this sweep, unless it is; the plan as it is cut up there.

        `part_size` is what the user asks for, if anything.

        Raises:
            InputError: it holds another sweep's results, or cannot be written to.
        """
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            if (known := self._known()) is not None or (
                known := self._made_meanwhile()
            ) is not None:
                self._refuse_other(known, plan, part_size)
                plan = replace(plan, part_size=known["part_size"])
            else:
                text = json.dumps(plan.to_json(), indent=2, allow_nan=False) + "\n"
                _write(self.path / PLAN_FILE, text.encode())
            self.parts.mkdir(exist_ok=True)
        return plan

    def _made_meanwhile(self) -> Mapping[str, Any] | None:
        """The plan that another shard, started at the same time, has just written, if one has.

        Raises:
            InputError: the folder holds something else.
        """
        if all(entry.name.startswith(".") for entry in self.path.iterdir()):
            return None
        if (known := self._known()) is None:
            message = "the folder holds something, but no sweep"
            raise InputError([self._problem("E821", message, _OTHER_FOLDER)])
        return known

    def _known(self) -> Mapping[str, Any] | None:
        """The plan of the results that are here, None where nothing is."""
        file = self.path / PLAN_FILE
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            return _checked(known)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problem = Problem("E822", f"cannot be read: {what}", Location(str(file)))
            raise InputError([replace(problem, fix=_OTHER_FOLDER)]) from error

    def _refuse_other(self, known: Mapping[str, Any], plan: Plan, part_size: int | None) -> None:
        if known["versions"] != plan.versions:
            made, now = (version_words(one) for one in (known["versions"], plan.versions))
            message = f"the results here were made with {made}, this is {now}"
            raise InputError([self._problem("E821", message, _OTHER_FOLDER)])
        if known["hash"] != plan.digest:
            message = f'the folder holds the results of another sweep, "{known["name"]}"'
            reason = "its file, what it starts from, a profile or an override differs"
            raise InputError([self._problem("E821", message, _OTHER_FOLDER, reason)])
        if part_size not in (None, known["part_size"]):
            message = f"the results here are cut into parts of {known['part_size']} points"
            fix = f"leave --part-size out, or write {known['part_size']}"
            raise InputError([self._problem("E821", message, fix)])

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Within, nobody else does the same; the system unlocks even what is killed.

        Raises:
            InputError: somebody does.
        """
        with self._writing():
            file = (self.path / f".lock-{name}").open("ab")
        with file:
            try:
                is_locked = try_to_lock(file)
            except OSError as error:
                message = f"files in this folder cannot be locked: {error.strerror}"
                fix = "give a folder of another file system, or have this one mounted with locks"
                raise InputError([self._problem("E829", message, fix)]) from error
            if not is_locked:
                message = "this sweep is already running in this folder"
                fix = "wait for it, or end it; several runs can share the work with --shard i/n"
                raise InputError([self._problem("E823", message, fix)])
            yield

    def read(self, plan: Plan, number: int) -> Counts | None:
        """The counts of a part that is here, None where it is not.

        Raises:
            PartError: its file is damaged.
        """
        try:
            content = self.part(number).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PartError(str(error)) from error
        return decoded(plan, number, content)

    def write(self, part: Part) -> None:
        """Put a part in its place, whole.

        Raises:
            InputError: there is no space, or the folder cannot be written to.
        """
        with self._writing():
            _write(self.part(part.number), part.content)

    def remove_leftovers(self, numbers: Container[int]) -> None:
        """Remove what a run that was killed had not finished writing of these parts."""
        with self._writing():
            for file in self.parts.glob(".part-*"):
                # Other programs' hidden files are not ours to remove.
                found = _UNFINISHED.fullmatch(file.name)
                if found and int(found[1]) in numbers:
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
                fix = "there must be a folder here, with files inside: move what is in the way, and"
            raise InputError(
                [
                    self._problem(
                        "E825" if full else "E824",
                        f"{what}: {error.strerror}",
                        f"{fix} give the same command again",
                        "the parts that were finished are on disk, and will not be done again",
                    )
                ]
            ) from error

    def _problem(self, code: str, message: str, fix: str, reason: str | None = None) -> Problem:
        return Problem(code, message, Location(str(self.path)), reason, fix)


def _checked(known: Any) -> Mapping[str, Any]:
    """What is needed of a sweep.json, unless somebody has changed it to what no plan has.

    Raises:
        KeyError, TypeError, ValueError: it is no such thing.
    """
    if not isinstance(known, dict):
        raise TypeError("it holds no plan of a sweep")
    types = {"hash": str, "name": str, "versions": dict, "part_size": int, "num_points": int}
    for name, expected in types.items():
        if type(known[name]) is not expected:
            raise TypeError(f"{name} is {json.dumps(known[name])}, which no sweep writes")
    if (part_size := known["part_size"]) < 1:
        raise ValueError(f"part_size is {part_size}, but must be 1 or more")
    return {name: known[name] for name in types}


def _write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile."""
    unfinished = path.with_name(f".{path.stem}-{secrets.token_hex(8)}")
    try:
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
