"""Executors that compute the parts of a sweep: this process, or worker processes on this machine.

All are `concurrent.futures.Executor`s. An executor that loses a worker raises BrokenExecutor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from simtrain.base.operating_system import MOST_WORKERS, num_processors
from simtrain.errors import InputError, Location
from simtrain.studies.sweep.workers import PartWorkers, Shard

if TYPE_CHECKING:
    from simtrain.studies.sweep.plan import SweepPlan

P = ParamSpec("P")
T = TypeVar("T")

_HAS_SIGNAL_MASKS = hasattr(signal, "pthread_sigmask")
"""False on Windows."""


class SerialExecutor(Executor):
    """Runs each call in this process, before `submit` returns."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function and return a completed future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def local_executor(num_workers: int) -> Executor:
    """Create an executor with `num_workers` processes; one worker is this process itself."""
    if num_workers < 2:
        return SerialExecutor()
    # Spawn, not fork: a forked copy has the locks of this process' threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    num_workers = min(num_workers, MOST_WORKERS or num_workers)
    return _Pool(num_workers, mp_context=context, initializer=_start_worker)


class Processes:
    """Worker processes on this machine."""

    def open(
        self, plan: SweepPlan, shard: Shard, num_workers: int | None, address: str | None
    ) -> PartWorkers:
        """Return the workers; a single one is this process itself."""
        if address is not None:
            message, fix = "processes on this machine have no address", "add --executor ray"
            raise InputError.of("E854", message, Location("--address"), fix)
        num_workers = min(num_workers or num_processors(), len(shard.parts(plan)))
        # Two parts per worker, so that none waits for this process to write a file.
        in_flight = 1 if num_workers < 2 else 2 * num_workers
        return PartWorkers(partial(local_executor, num_workers), in_flight, shard)


class _Pool(ProcessPoolExecutor):
    """A process pool that blocks Ctrl-C in its workers until they have installed a handler."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call; starts a worker if none is idle."""
        if not _HAS_SIGNAL_MASKS:
            return super().submit(fn, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    # Ctrl-C also reaches workers: they exit silently, and the parent reports the interruption.
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    if _HAS_SIGNAL_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent dies; otherwise its workers would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
