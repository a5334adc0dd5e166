"""Run a process with limits on its time and its output, and end what it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

MOST_OUTPUT_BYTES = 8 << 20
"""What a program may print. Programs that print each step or layer stay far below."""
_SECONDS_TO_END, _POLL_S, _CHUNK_BYTES = 2.0, 0.05, 1 << 16


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process has ended.

    Args:
        status: its exit code; negative for a signal; None if it was ended because of a limit.
        printed_too_much: the limit was that of its output, not of its time.
    """

    status: int | None
    printed_too_much: bool = False


def run_limited(command: list[str], seconds: float, variables: Mapping[str, str]) -> ProcessEnd:
    """Run a command whose output goes to stderr; return how it has ended.

    All processes that it has started end with it, unless they leave its session.

    Args:
        command: the command.
        seconds: how long it may run.
        variables: its environment.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=dict(variables),
    )
    assert process.stdout is not None, "it is a pipe"
    flooded = threading.Event()
    # A process that has left the session may hold the pipe open for ever.
    copier = threading.Thread(target=_copy, args=(process.stdout, flooded), daemon=True)
    copier.start()
    end_s = time.monotonic() + seconds
    try:
        while process.poll() is None:
            if flooded.is_set():
                return ProcessEnd(None, printed_too_much=True)
            if time.monotonic() > end_s:
                return ProcessEnd(None)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        return ProcessEnd(process.returncode)
    finally:
        _end(process)
        copier.join(_SECONDS_TO_END)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session: kindly if it still runs, then by force."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _copy(pipe: IO[bytes], flooded: threading.Event) -> None:
    """Copy what a process prints to stderr, as it comes, up to the limit."""
    left = MOST_OUTPUT_BYTES
    with pipe:
        while part := os.read(pipe.fileno(), _CHUNK_BYTES):
            with suppress(OSError):  # stderr is closed
                os.write(2, part[: max(0, left)])
            left -= len(part)
            if left < 0:
                flooded.set()
