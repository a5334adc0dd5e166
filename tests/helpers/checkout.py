"""A copy of the project in which a test adds a file and a line of registration.

A part that plugs in is one object in one file. A test of it copies the project, adds the file and
the line, and runs the command line of the copy.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Self

from tests.helpers.command_line import ROOT

_CODE = "simtrain", "calibrate", "docs/update"
_DATA = "scenarios", "hw_profiles", "software_stacks", "sweeps", "docs/measured_runs"


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the project's code and data at `folder`."""

    folder: pathlib.Path

    @classmethod
    def copy(cls, folder: pathlib.Path) -> Self:
        """Copy the project to a folder that exists."""
        ignore = shutil.ignore_patterns("__pycache__")
        for name in (*_CODE, *_DATA):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        return cls(folder)

    def add(self, path: str, text: str) -> None:
        """Write a new file, at a path relative to the copy."""
        file = self.folder / path
        assert not file.exists(), f"{path} is not new"
        file.write_text(text, "utf-8")

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace a text that occurs once in a file of the copy."""
        file = self.folder / path
        text = file.read_text("utf-8")
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
        file.write_text(text.replace(old, new), "utf-8")

    def spawn(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` in the copy."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )

    def call(self, *words: str) -> str:
        """Run `simtrain WORDS` of the copy, which must succeed, and return what it prints."""
        done = self.spawn("-m", "simtrain", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """Run `simtrain WORDS` of the copy, which must exit with 2, and return its errors."""
        done = self.spawn("-m", "simtrain", *words)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr
