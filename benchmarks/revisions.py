"""Source trees of two revisions: the working tree, and a temporary checkout of an older commit.

A script that runs in both starts by its path. PYTHONPATH is the tree, and -P keeps the script's own
folder off the path: `import simtrain` imports the tree's package.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

SCRIPTS = pathlib.Path(__file__).resolve().parent
WORKING_TREE = SCRIPTS.parent


@dataclass(frozen=True, slots=True)
class Revision:
    """A source tree and its name."""

    name: str
    tree: pathlib.Path

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start `python ARGUMENTS` with this tree's simtrain."""
        return subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdout=stdout,
            env=os.environ | {"PYTHONPATH": str(self.tree)},
            cwd=self.tree,
            text=True,
            encoding="utf-8",
        )

    def start_script(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a script of the working tree's benchmarks with this tree's simtrain."""
        return self.start(str(SCRIPTS / name), *arguments)

    def lines(self, process: subprocess.Popen[str]) -> Iterator[str]:
        """Yield the lines that a script prints after the first line, the path of its simtrain.

        Raises:
            RuntimeError: the script imported another tree's simtrain, or failed.
        """
        assert process.stdout is not None
        with process:
            imported = process.stdout.readline().strip()
            if imported and not pathlib.Path(imported).resolve().is_relative_to(self.tree):
                process.kill()
                raise RuntimeError(f"{self.name} ({self.tree}) has imported {imported}")
            yield from process.stdout
        if process.returncode:
            raise RuntimeError(f"{self.name}: python failed with exit code {process.returncode}")


def working_tree() -> Revision:
    """Return the tree that contains this file, with its uncommitted changes."""
    return Revision("the working tree", WORKING_TREE)


@contextmanager
def checked_out(revision: str) -> Iterator[Revision]:
    """Check a revision out into a temporary worktree; it is removed at the end, also on error.

    Raises:
        RuntimeError: git has no commit of this name.
    """
    try:
        commit = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except RuntimeError as error:
        raise RuntimeError(f'git has no commit "{revision}" ({error})') from error
    with tempfile.TemporaryDirectory(prefix="simtrain-") as folder:
        tree = pathlib.Path(folder).resolve() / "tree"
        try:
            _git("worktree", "add", "--detach", str(tree), commit)
            _describe_plug_ins(tree)
            yield Revision(_git("log", "-1", "--format=%h (%s)", commit), tree)
        finally:
            with suppress(RuntimeError):  # if it was not added, that error is raised
                _git("worktree", "remove", "--force", str(tree))


def _describe_plug_ins(tree: pathlib.Path) -> None:
    """Write the metadata of the tree's package: that of the installed one names other plug-ins."""
    project = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]
    folder = tree / f"simtrain-{project['version']}.dist-info"
    folder.mkdir()
    described = f"Metadata-Version: 2.1\nName: simtrain\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(described, "utf-8")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(WORKING_TREE), *arguments], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
