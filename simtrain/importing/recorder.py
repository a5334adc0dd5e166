"""Stand in for a launcher: record what it is started with, and start nothing.

`capture` runs this file alone, as `recorder.py FOLDER NAME ARGUMENT...`, wherever a script starts a
program of this name. It therefore imports nothing of simtrain.

Python runs the programs that train no model, because the script may need their output. A shell that
srun, mpirun or a container would start runs too, because its commands may start launchers.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

FLAGS = "flags"
"""File of the folder that lists the arguments of training programs, without dashes."""
PROGRAM = "SIMTRAIN_PROGRAM"
"""The variable with the path by which the script calls the program."""
VARIABLES = (
    *("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
)
"""The only variables that are recorded: others may be secrets."""
_LAUNCHERS = re.compile(r"torch\.distributed\.(run|launch)|(accelerate|deepspeed)(\..*)?")
_TRAINING = re.compile(r"(?<![a-z])(pre)?train|fine_?tun|(?<![a-z])sft")
_SHELLS = "bash", "sh"
_FIRST_RANK = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def main() -> None:
    """Record this call, or run the program that it stands in for."""
    folder, name, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    is_python = name.startswith("python")
    if is_python and not is_training(words, (folder / FLAGS).read_text().split()):
        path = os.pathsep.join(
            entry for entry in os.get_exec_path() if Path(entry) != folder / "bin"
        )
        called = os.environ.pop(PROGRAM, "")
        is_here = os.access(called, os.X_OK)
        program = called if is_here else shutil.which(name, path=path) or sys.executable
        os.execv(program, [name, *words])
    # torchrun starts its target itself; the others may start a shell with more launchers.
    shell = None if is_python or name == "torchrun" else _shell_at(words)
    _record(folder, [name, *(words if shell is None else words[: shell + 1])])
    if shell is not None:
        os.execvpe(words[shell], words[shell:], _FIRST_RANK | os.environ)


def is_training(words: Sequence[str], flags: Sequence[str]) -> bool:
    """Return whether `python WORDS` trains a model.

    It does if the program is a launcher, has a name such as pretrain_gpt.py, or gets an argument
    that a training program has.

    Args:
        words: what follows "python".
        flags: arguments of training programs, such as num_layers.
    """
    program, arguments = _program(words)
    if _LAUNCHERS.fullmatch(program) or _TRAINING.search(Path(program).name.lower()):
        return True
    return bool(program) and any(
        word.startswith("--") and _name(word) in flags for word in arguments
    )


def _program(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the script or module that Python runs and its arguments; "" if it runs neither."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at].startswith("--"):
            at += 1  # such as --version
            continue
        option = re.match(r"-[^cmWX]*([cmWX]?)(.*)", words[at], re.DOTALL)
        letter, value = option.groups() if option else ("", "")
        at += 1
        if letter == "c" or words[at - 1] == "-":
            return "", ()
        if letter and not value:
            value, at = " ".join(words[at : at + 1]), at + 1
        if letter == "m":
            return value, words[at:]
    return " ".join(words[at : at + 1]), words[at + 1 :]


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def _shell_at(words: Sequence[str]) -> int | None:
    """Return the position of the shell that a launcher would start, or None."""
    for at, word in enumerate(words):
        program = Path(word).name
        if program in _SHELLS:
            return at
        if program == "torchrun" or program.startswith("python"):
            return None
    return None


def _record(folder: Path, words: Sequence[str]) -> None:
    """Write the words and the environment."""
    record = {
        "words": words,
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    records = folder / "records"
    unfinished = folder / f"{os.getpid()}.unfinished"
    unfinished.write_text(json.dumps(record), encoding="ascii")
    unfinished.rename(records / f"{time.time_ns()}-{os.getpid()}.json")


if __name__ == "__main__":
    main()
