"""Run a launch script in the user's shell, and write down what it starts: `--capture`.

Reading a script never runs anything; this does, so that loops, functions and other files have the
effect that they have in a job. First in PATH are programs named torchrun, srun, python and so on.
They record their arguments and start nothing; Python runs programs that train no model. The answer
is a script without variables beside the user's own, which is read like any other.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from simtrain.base.input_file import read_text
from simtrain.base.output_folder import write_text
from simtrain.errors import InputError, Location
from simtrain.guests.importing.megatron.launch import headers_of, variables_of
from simtrain.guests.importing.shell.syntax import Lines

_LAUNCHERS = "torchrun", "deepspeed", "accelerate"
_WRAPPERS = "srun", "mpirun", "mpiexec", "docker", "podman", "singularity", "apptainer", "ssh"
_SUBMITTERS = "sbatch", "qsub", "bsub"
_PYTHONS = ("python", "python3", *(f"python3.{minor}" for minor in range(8, 20)))
_IN_A_JOB = {
    **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "localhost"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "1"),
}
"""Variables of a batch job that no header gives a value."""
_RECORD = """#!/bin/sh
record() { printf '%s\\0' "$@" > "$(mktemp "{records}/$(date +%s%N)-XXXXXX")"; }
"""
_LAUNCHER = _RECORD + 'record {name} "$@"\n'
# A shell that a wrapper would start runs, because its commands may start launchers.
_WRAPPER = (
    _RECORD
    + """for word in "$@"; do
  case ${word##*/} in
    torchrun|python*) break ;;
    bash|sh) while [ "$1" != "$word" ]; do shift; done; exec "$@" ;;
  esac
done
record {name} "$@"
"""
)
_PYTHON = (
    _RECORD
    + """for word in "$@"; do
  case $word in
    -c) break ;;
    torch.distributed*|*pretrain*|*finetune*|*/train*.py|train*.py|--num-layers*|--deepspeed*)
      record {name} "$@"; exit ;;
  esac
done
PATH={path}; exec {name} "$@"
"""
)
_NAMES = r"torchrun|deepspeed|accelerate|srun|mpirun|python[\d.]*"
_BY_PATH = re.compile(rf"^[^#\n]*?(\S*/(?:{_NAMES}))(?=[\"'\s])", re.MULTILINE)
"""A launcher that a script calls by its path: no recorder would stand in for it."""
_SECONDS = 600.0
_MOST_BYTES = 4 << 20
_HEADER = re.compile(r"^#(?:SBATCH|PBS|BSUB|\$)[ \t][^\n]*", re.MULTILINE)


def capture(script: Path, env: Mapping[str, str] | None, seconds: float = _SECONDS) -> Path:
    """Run a script with bash, and write what it starts to NAME.captured.sh beside it.

    Args:
        script: the script. Its output goes to stderr.
        env: variables that are added to its environment.
        seconds: how long it may run.

    Raises:
        InputError: there is no bash, or the script calls a launcher by its path (E745), it starts
            no launcher (E744) or none in the time (E746), or the file cannot be written.
    """
    text = read_text(script, _MOST_BYTES)
    if called := _BY_PATH.search(text):
        message = f"calls {called[1]} by its path, which would start it"
        place = Location(str(script), text.count("\n", 0, called.start(1)) + 1)
        raise InputError.of("E745", message, place, "call it by its name")
    variables = variables_of(headers_of(text, Lines(text, str(script))))
    if "#SBATCH" in text:
        variables = _IN_A_JOB | variables | {"SLURM_SUBMIT_DIR": os.getcwd()}
    with TemporaryDirectory(prefix="simtrain-") as name:
        folder = Path(name)
        _write_recorders(folder)
        status = _run(script, folder, variables | dict(os.environ) | {**(env or {})}, seconds)
        records = sorted((folder / "records").iterdir())
        commands = [file.read_bytes().decode("utf-8", "replace").split("\0") for file in records]
    lines = [*dict.fromkeys(shlex.join(words[:-1]) for words in commands)]
    if not any(line.split()[0] not in _SUBMITTERS for line in lines):
        raise _nothing_started(script, status, bool(lines), seconds)
    target = script.with_name(f"{script.stem}.captured.sh")
    heading = f"#!/bin/bash\n# What {script} starts, as simtrain --capture recorded it."
    whole = "\n".join([heading, *_HEADER.findall(text), *lines, ""])
    write_text(target, whole, "what the script starts", "--capture")
    return target


def _write_recorders(folder: Path) -> None:
    """Write a program for each launcher that records its arguments, one file a call."""
    programs, records = folder / "bin", folder / "records"
    programs.mkdir()
    records.mkdir()
    path = shlex.quote(os.environ.get("PATH", os.defpath))
    pythons = [name for name in _PYTHONS if shutil.which(name)]
    for names, template in (
        (_LAUNCHERS + _SUBMITTERS, _LAUNCHER),
        (_WRAPPERS, _WRAPPER),
        (pythons, _PYTHON),
    ):
        for name in names:
            text = template.replace("{records}", str(records)).replace("{name}", name)
            (programs / name).write_text(text.replace("{path}", path), "utf-8")
            (programs / name).chmod(0o700)


def _run(script: Path, folder: Path, environment: Mapping[str, str], seconds: float) -> int | None:
    """Run a script and return its exit code; None if the time ended before."""
    path = os.pathsep.join([str(folder / "bin"), environment.get("PATH", os.defpath)])
    try:
        process = subprocess.Popen(
            ["bash", str(script)],
            env={**environment, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
    except OSError as error:
        message = f"bash cannot be started: {error.strerror}"
        raise InputError.of("E745", message, Location(str(script)), "install bash") from error
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):  # jobs in the background, also after Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _nothing_started(
    script: Path, status: int | None, has_submitted: bool, seconds: float
) -> InputError:
    place, reason = Location(str(script)), f"recorded are {', '.join(_LAUNCHERS)} and python"
    if has_submitted:
        fix = "capture the script of the job that it submits"
        return InputError.of("E744", "submits a job and starts no launcher", place, fix, reason)
    if status is None:
        message = f"started no launcher in {seconds:g} s"
        fix = "let the script start the launcher first, without downloads and waiting"
        return InputError.of("E746", message, place, fix, reason)
    message = f"started no launcher, and ended with exit code {status}"
    fix = "see its output above: let the script come as far as its launcher"
    return InputError.of("E744", message, place, fix, reason)
