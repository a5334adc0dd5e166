"""Who computes the parts: this process, or several on this machine.

An executor is a `concurrent.futures.Executor`. One that loses a worker raises BrokenExecutor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import ParamSpec, TypeVar

from simtrain.system import MOST_WORKERS

P = ParamSpec("P")
T = TypeVar("T")

_HAS_SIGNAL_MASKS = hasattr(signal, "pthread_sigmask")
"""False on Windows."""


class SerialExecutor(Executor):
    """Computes in this process, each call before `submit` returns."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function; its future is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def local_executor(num_workers: int) -> Executor:
    """Processes on this machine; where one is enough it is this process."""
    if num_workers < 2:
        return SerialExecutor()
    # A fresh interpreter: a copy of this one would have its threads' locks, but not the threads.
    context = multiprocessing.get_context("spawn")
    num_workers = min(num_workers, MOST_WORKERS or num_workers)
    return _Pool(num_workers, mp_context=context, initializer=_start_worker)


class _Pool(ProcessPoolExecutor):
    """Workers that Ctrl-C, which reaches them too, does not find unprepared while they start."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a worker call a function; it starts one where none is idle."""
        if not _HAS_SIGNAL_MASKS:
            return super().submit(fn, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    # Ctrl-C reaches workers too: what they have in hand is given up, and only the parent says so.
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    if _HAS_SIGNAL_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers, who would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
