"""Another package, as pip would install it, whose entry points add parts to simtrain.

Parts plug in without a line in the checkout: `Outsider` writes a package with its metadata to a
folder, and runs simtrain with this folder on the path.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tests.helpers.command_line import ROOT

_METADATA = "Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n"


@dataclass(frozen=True, slots=True)
class Outsider:
    """An installed package `outsider` in `folder`, which is the working directory too."""

    folder: pathlib.Path

    @classmethod
    def install(
        cls,
        folder: pathlib.Path,
        files: Mapping[str, str],
        entry_points: Mapping[str, Mapping[str, str]],
    ) -> Self:
        """Write the package.

        Args:
            folder: an empty folder.
            files: texts of the package's files, by their path in it.
            entry_points: for each kind, such as "schedules", places in the package by name.
        """
        for path, text in ({"__init__.py": ""} | dict(files)).items():
            file = folder / "outsider" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        metadata = folder / "outsider-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(_METADATA, "utf-8")
        sections = (
            [f"[simtrain.{kind}]", *(f"{name} = outsider.{place}" for name, place in parts.items())]
            for kind, parts in entry_points.items()
        )
        lines = (line for section in sections for line in section)
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
        return cls(folder)

    def spawn(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` with the package installed."""
        path = os.pathsep.join([str(ROOT), str(self.folder)])
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )

    def call(self, *words: str) -> str:
        """Run `simtrain WORDS`, which must succeed, and return what it prints."""
        done = self.spawn("-m", "simtrain", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """Run `simtrain WORDS`, which must exit with 2, and return its errors."""
        done = self.spawn("-m", "simtrain", *words)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr
