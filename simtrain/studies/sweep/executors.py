"""Executors of `concurrent.futures` that compute parts: this process, processes, a Ray cluster.

An executor that loses a worker raises BrokenExecutor. Ray is an optional dependency and prints
much: it is imported only on request, and its messages go to its own logs. Every node needs
simtrain; profiles are sent as text, because a node may not have their files.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from importlib import metadata
from multiprocessing.connection import wait
from typing import Any, ParamSpec, TypeVar

from simtrain.base.extras import require
from simtrain.base.process import MOST_WORKERS
from simtrain.base.resources import find_profile
from simtrain.base.version import VERSION
from simtrain.errors import InputError, Location
from simtrain.hardware.load import give_profile

P = ParamSpec("P")
T = TypeVar("T")

_CONNECT_TIMEOUT_S, _LAST_PORT, _MOST_LOSSES = 5.0, 65535, 3
# Ray reads these at import. Without them it reports dead workers on stdout, among our data, and
# tries to reach a missing cluster for minutes.
_QUIET_AND_BOUNDED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "5",
}


def versions() -> dict[str, str]:
    """Versions of the installed programs that write a part."""
    return {"simtrain": VERSION, "pyarrow": metadata.version("pyarrow")}


class SerialExecutor(Executor):
    """Runs each call in this process, before `submit` returns."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
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
    return ProcessPoolExecutor(num_workers, context, _start_worker)


def _start_worker() -> None:
    # Ctrl-C also reaches workers: they exit silently, and the parent reports the interruption.
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # Without it, the workers of a killed process would wait for work forever.
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        os._exit(1)


def connect(address: str, profiles: Iterable[str] = ()) -> RayExecutor:
    """Connect to the Ray cluster whose head node is at "host:port", and send it profiles.

    Raises:
        InputError: Ray is not installed, no cluster answers within half a minute, or it runs other
            versions of Ray or Python.
    """
    require("--ray", "ray")
    match = re.fullmatch(r"\[?([^/\[\]]+?)\]?:([0-9]{1,5})", address)
    os.environ |= _QUIET_AND_BOUNDED | os.environ
    import ray

    try:
        if not match or int(match[2]) > _LAST_PORT:
            raise ValueError("the address is not host:port")
        # Ray takes far longer to fail.
        socket.create_connection((match[1], int(match[2])), _CONNECT_TIMEOUT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        message = f'no Ray cluster answers at "{address}"'
        fix = (
            "run this command on a node of the cluster, with the host:port that ray start --head "
            "prints, such as 10.0.0.1:6379"
        )
        raise InputError.of("E852", message, Location("--ray"), fix, str(error)) from error
    texts = {name: find_profile(name).read_text(encoding="utf-8") for name in profiles}
    return RayExecutor(ray, (versions(), texts))


Needs = tuple[Mapping[str, str], Mapping[str, str]]
"""Versions that a node must have, and texts of hardware profiles by name."""


def on_node(needs: Needs, fn: Callable[..., T], *args: Any) -> T:
    """Call a function on a node of the cluster; refuse one with other versions (E853)."""
    needed, profiles = needs
    if (here := versions()) != needed:
        message = f"a node of the cluster has {here}; this machine has {needed}"
        raise InputError.of("E853", message, fix="install the same versions on every node")
    for name, text in profiles.items():
        give_profile(name, text)
    return fn(*args)


class RayExecutor(Executor):
    """Runs each call as a task of the module `ray` with one CPU; Ray repeats lost calls."""

    def __init__(self, ray: Any, needs: Needs) -> None:
        self._ray = ray
        task = ray.remote(num_cpus=1, max_retries=_MOST_LOSSES)(on_node)
        self._submit = partial(task.remote, ray.put(needs))

    @property
    def num_processors(self) -> int:
        """Number of CPUs in the cluster, at least 1 because nodes may still join."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        theirs = self._submit(fn, *args).future()
        theirs.add_done_callback(partial(self._finish, future))
        return future

    def _finish(self, future: Future[T], theirs: Future[T]) -> None:
        error = theirs.exception()
        if isinstance(error, self._ray.exceptions.RayTaskError):
            error = error.cause
        if error is None:
            future.set_result(theirs.result())
        elif not isinstance(error, self._ray.exceptions.RayError):
            future.set_exception(error)
        else:
            message = "the nodes of the cluster cannot compute parts"
            reason, *_ = str(error).splitlines()
            fix = (
                f"install simtrain {VERSION} with the same Python on every node, with enough memory"
            )
            future.set_exception(InputError.of("E853", message, None, fix, reason))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ray.shutdown()
