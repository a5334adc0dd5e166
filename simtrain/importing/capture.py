"""Run a user's launch script with recorders in place of its launchers, and write what they start.

Reading a script never runs anything; this does. The shell of the user decides every value, so that
loops, functions and other files have the effect that they have in a job. First in PATH are programs
named torchrun, python, srun and so on, each of which records its arguments (`recorder`). bash also
gets functions of these names, which an activated environment cannot hide, and of the paths by which
the script calls them, which a trap before each command finds.

A job's node has what this machine may lack: a sourced file that is not here, and `module` and
`scontrol` that are no commands here, do nothing, and say so.

What they record becomes a script without variables, which importers read like any other.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from simtrain.base.input_file import read_bytes
from simtrain.commands.printing import emit
from simtrain.errors import InputError, Location, Problem
from simtrain.importing import recorder
from simtrain.importing.megatron.arguments import KNOWN
from simtrain.importing.megatron.launch import headers_of, variables_of
from simtrain.importing.shell.syntax import CAPTURED, Lines

LAUNCHERS = "torchrun", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec"
"""What a script starts training with, beside Python."""
_CONTAINERS = "docker", "podman", "singularity", "apptainer", "enroot"
_OTHER_HOSTS = "ssh", "pdsh"
SUBMITTERS = "sbatch", "salloc", "qsub", "bsub"
_PYTHONS = ("python", "python3", *(f"python3.{minor}" for minor in range(8, 20)))
_IN_A_JOB = {
    **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "localhost"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "1"),
}
"""Variables of a batch job that no header gives a value."""
_BASH = r"""
source() {
  if [ -r "$1" ] || type -P -- "$1" > /dev/null; then builtin source "$@"
  else echo "simtrain: $1 is not here, and not sourced" >&2; fi
}
.() { source "$@"; }
type module > /dev/null 2>&1 || module() { echo "simtrain: there is no module here" >&2; }
type scontrol > /dev/null 2>&1 || scontrol() { echo localhost; }
_simtrain_launchers() {
  local - word path
  set -f +eu
  for word in $BASH_COMMAND; do
    case ${word%\"} in
      LAUNCHERS)
        [[ $word =~ ^\"?[A-Za-z0-9_./\$\{\}~-]+\"?$ ]] && eval "path=$word" &&
          [[ $path != BIN/* ]] &&
          eval "$path() { SIMTRAIN_PROGRAM='$path' BIN/${path##*/} \"\$@\"; }" ;;
    esac
  done
  :
}
set -T
trap _simtrain_launchers DEBUG
"""
"""What bash reads before the script: LAUNCHERS are patterns of paths, BIN is the recorders'."""
_SECONDS = 600.0
_SECONDS_OF_JOBS = 5.0
"""How long jobs in the background may go on after the script."""
_SECONDS_TO_END = 2.0
_MOST_BYTES = 4 << 20
_HEADER = re.compile(r"^#(?:SBATCH|PBS|BSUB|\$)[ \t][^\n]*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launcher was started with.

    Args:
        words: its name and its arguments.
        environment: Slurm's variables of its environment.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> str:
        """The launcher and the Python file that it starts, such as "torchrun pretrain_gpt.py"."""
        scripts = (word for word in self.words if word.endswith(".py"))
        return " ".join([self.words[0], *[next(scripts, "")]]).rstrip()


@dataclass(frozen=True, slots=True)
class Capture:
    """A script with what a command starts.

    Args:
        command: the command that ran, such as "bash train.sh".
        path: the script, in a folder that exists during the import.
        launches: what the script starts.
    """

    command: str
    path: Path
    launches: tuple[Launch, ...]

    def named(self, text: str) -> str:
        """Name the command in place of the script, of which the user knows nothing."""
        return text.replace(str(self.path), self.command).replace(f"{self.path.parent}/", "")


@contextmanager
def capture(
    command: Sequence[str], env: Mapping[str, str] | None = None, seconds: float = _SECONDS
) -> Iterator[Capture]:
    """Run a command with recorders, and yield the script of what it starts.

    Args:
        command: such as ["bash", "train.sh"]. Its output goes to stderr.
        env: variables that are added to its environment.
        seconds: how long it may run.

    Raises:
        InputError: it cannot be started (E745), starts no launcher (E744) or, in the time, none
            (E746). Errors about the script of the capture name the command.
    """
    script = _script_of(command)
    with TemporaryDirectory(prefix="simtrain-") as name:
        folder = Path(name)
        _write_recorders(folder)
        variables = variables_of(headers_of(script, Lines(script, "")))
        if "#SBATCH" in script:
            variables = _IN_A_JOB | variables | {"SLURM_SUBMIT_DIR": os.getcwd()}
        status = _run(command, folder, variables | dict(os.environ) | {**(env or {})}, seconds)
        launches = _launches(folder)
        if not any(launch.words[0] not in SUBMITTERS for launch in launches):
            raise _nothing_started(shlex.join(command), status, launches, seconds)
        path = folder / "captured.sh"
        captured = Capture(shlex.join(command), path, launches)
        path.write_text(_text(captured, script), encoding="utf-8", errors="replace")
        try:
            yield captured
        except InputError as error:
            problems = [_named(captured, problem) for problem in error.problems]
            raise InputError(problems) from None


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command that the words of a command line name: a file alone is a script."""
    is_script = len(words) == 1 and Path(words[0]).is_file()
    return ["bash", *words] if is_script else [*words]


@contextmanager
def announced_capture(command: Sequence[str], env: Mapping[str, str] | None) -> Iterator[Capture]:
    """Capture a command, and say on stderr that it runs and what is recorded.

    Errors are those of `capture`.
    """
    line = (
        f"Running: {shlex.join(command)}. Programs that it starts run, except launchers, which are"
    )
    emit(f"{line} recorded.\n", sys.stderr)
    with capture(command, env) as captured:
        programs = ", ".join(dict.fromkeys(launch.program for launch in captured.launches))
        emit(f"Recorded, not started: {programs}.\n", sys.stderr)
        yield captured


def _named(captured: Capture, problem: Problem) -> Problem:
    place = problem.location
    return replace(
        problem,
        message=captured.named(problem.message),
        location=place and replace(place, file=captured.named(place.file)),
        fix=problem.fix and captured.named(problem.fix),
    )


def _script_of(command: Sequence[str]) -> str:
    """Return the text of the script that a command runs; "" if it runs none."""
    for word in command:
        with suppress(OSError, ValueError):
            text = read_bytes(Path(word), _MOST_BYTES).decode("utf-8", "replace")
            if "\0" not in text:  # a shell is a file too
                return text.replace("\r\n", "\n")
    return ""


def _write_recorders(folder: Path) -> None:
    """Write a program, and a function of bash, for each launcher."""
    programs = folder / "bin"
    programs.mkdir()
    (folder / "records").mkdir()
    (folder / recorder.FLAGS).write_text("\n".join(KNOWN), encoding="utf-8")
    pythons = [name for name in _PYTHONS if name in ("python", "python3") or shutil.which(name)]
    functions = []
    for name in (*LAUNCHERS, *_CONTAINERS, *_OTHER_HOSTS, *SUBMITTERS, *pythons):
        call = [sys.executable, "-I", "-S", recorder.__file__, str(folder), name]
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(call)} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        functions.append(f'{name}() {{ {shlex.quote(str(program))} "$@"; }}\n')
    before = os.environ.get("BASH_ENV")
    start = f"[ -r {shlex.quote(before)} ] && . {shlex.quote(before)}\n" if before else ""
    patterns = "|".join(f"*/{name}" for name in (*LAUNCHERS, *pythons))
    traps = _BASH.replace("LAUNCHERS", patterns).replace("BIN", shlex.quote(str(programs)))
    (folder / "functions").write_text(start + "".join(functions) + traps, encoding="utf-8")


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float
) -> int | None:
    """Run a command and return its exit code; None if the time ended before.

    Raises:
        InputError: there is no such program (E745).
    """
    path = os.pathsep.join([str(folder / "bin"), environment.get("PATH", os.defpath)])
    variables = {**environment, "PATH": path, "BASH_ENV": str(folder / "functions")}
    # Each process of the command holds this pipe open: it ends with the last of them.
    ends, open_end = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
            pass_fds=(open_end,),
        )
    except (OSError, ValueError) as error:
        os.close(open_end)
        os.close(ends)
        reason = getattr(error, "strerror", None) or str(error)
        script = command[0] if Path(command[0]).is_file() else "train.sh"
        fix = f"write --capture -- bash {script}"
        message = f"cannot be started: {reason}"
        raise InputError.of("E745", message, Location(shlex.join(command)), fix) from error
    os.close(open_end)
    try:
        status = process.wait(seconds)
        select.select([ends], [], [], _SECONDS_OF_JOBS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process, ends)
        os.close(ends)
    return status


def _end(process: subprocess.Popen[bytes], ends: int) -> None:
    """End all processes of a command, also after Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        if select.select([ends], [], [], _SECONDS_TO_END)[0]:
            break
    process.wait()


def _launches(folder: Path) -> tuple[Launch, ...]:
    """Return what was recorded, in order; a launch that is tried again counts once."""
    launches: dict[tuple[str, ...], Launch] = {}
    for file in sorted((folder / "records").iterdir()):
        record = json.loads(read_bytes(file, _MOST_BYTES))
        words = tuple(record["words"])
        launches.setdefault(words, Launch(words, record["environment"]))
    return tuple(launches.values())


def _nothing_started(
    command: str, status: int | None, launches: Sequence[Launch], seconds: float
) -> InputError:
    place = Location(command)
    reason = f"recorded are {', '.join((*LAUNCHERS, 'python'))}"
    if launches:
        message = f"submits a job with {launches[0].words[0]} and starts no launcher itself"
        fix = "capture the script of the job: --capture -- bash job.sh"
        return InputError.of("E744", message, place, fix, reason)
    if status is None:
        message = f"started no launcher in {seconds:g} s"
        fix = "let the script start the launcher first, without downloads and waiting"
        return InputError.of("E746", message, place, fix, reason)
    message = f"started no launcher, and ended with exit code {status}"
    fix = "see its output above: let the script come as far as its launcher"
    return InputError.of("E744", message, place, fix, reason)


def _text(captured: Capture, script: str) -> str:
    """Return a script without variables that starts what was recorded."""
    headers = _HEADER.findall(script)
    written = headers_of(script, Lines(script, ""))
    # An allocation of Slurm has these variables without a header.
    for name, variables in (
        ("nodes", recorder.VARIABLES[:2]),
        ("tasks_per_node", recorder.VARIABLES[4:5]),
        ("gpus_per_node", recorder.VARIABLES[5:]),
    ):
        values = [
            launch.environment[variable]
            for launch in captured.launches
            for variable in variables
            if variable in launch.environment
        ]
        if values and name not in written:
            option = name.replace("tasks", "ntasks").replace("_", "-")
            headers.append(f"#SBATCH --{option}={values[0].split('(')[0]}")
    commands = [shlex.join(launch.words) for launch in captured.launches]
    heading = f"{CAPTURED} {' '.join(captured.command.split())}"
    return "\n".join([heading, *headers, *commands, ""])
