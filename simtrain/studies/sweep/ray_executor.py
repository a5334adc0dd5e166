"""An executor that computes parts on an existing Ray cluster.

Ray is an optional dependency and prints much: it is imported only on request, and its messages go
to its own logs. Every node needs simtrain. Base scenarios travel in the plan; profiles are sent as
text, because a node may not have their files, or may have different ones.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from simtrain.base.extras import require
from simtrain.base.resources import find_profile
from simtrain.base.version import VERSION
from simtrain.errors import InputError, Location
from simtrain.hardware.load import give_profile
from simtrain.studies.sweep.versions import version_words, versions
from simtrain.studies.sweep.workers import PartWorkers, Shard

if TYPE_CHECKING:
    from simtrain.studies.sweep.plan import SweepPlan

P = ParamSpec("P")
T = TypeVar("T")

_CONNECT_TIMEOUT_S = 5.0
_LAST_PORT = 65535
# Ray reads these at import. Without them it reports dead workers on stdout, among our data, and
# tries to reach a missing cluster for minutes.
_QUIET_AND_BOUNDED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "5",
}


@dataclass(frozen=True, slots=True)
class Needs:
    """Versions that a node must have, and the profiles sent to it as text."""

    versions: Mapping[str, str]
    profiles: Mapping[str, str]


def needs_of(plan: SweepPlan) -> Needs:
    """Collect the versions and profiles that a plan needs, on the machine with the files."""
    texts = {name: find_profile(name).read_text(encoding="utf-8") for name in plan.profiles}
    return Needs(plan.versions, texts)


def on_node(needs: Needs, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function on a node of the cluster.

    A node with other versions is refused (E853): its parts would differ in their bytes.
    """
    if (here := versions()) != needs.versions:
        has, wanted = (version_words(versions) for versions in (here, needs.versions))
        message = f"a node of the cluster has {has}; this machine has {wanted}"
        fix = "install the same versions on every node"
        raise InputError.of("E853", message, fix=fix)
    for name, text in needs.profiles.items():
        give_profile(name, text)
    return fn(*args, **kwargs)


class RayCluster:
    """The nodes of a Ray cluster that runs already."""

    def open(
        self, plan: SweepPlan, shard: Shard, num_workers: int | None, address: str | None
    ) -> PartWorkers:
        """Connect to the cluster, and return a worker per processor of it."""
        if not (address := address or os.environ.get("RAY_ADDRESS")):
            message = "the address of the Ray cluster is missing"
            fix = "add --address host:port as printed by ray start --head, or set RAY_ADDRESS"
            raise InputError.of("E854", message, Location("--executor ray"), fix)
        cluster = connect(address, needs_of(plan))
        return PartWorkers(lambda: cluster, num_workers or cluster.num_processors, shard)


def connect(address: str, needs: Needs) -> RayExecutor:
    """Connect to the cluster whose head node is at "host:port".

    Raises:
        InputError: Ray is not installed, no cluster answers within half a minute, or it runs other
            versions of Ray or Python.
    """
    require("--executor ray", "ray")
    _check_that_something_listens(address)
    for name, value in _QUIET_AND_BOUNDED.items():
        os.environ.setdefault(name, value)
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(address, str(error)) from error
    return RayExecutor(ray, needs)


def _check_that_something_listens(address: str) -> None:
    """Try the port first: Ray takes far longer to fail."""
    match = re.fullmatch(r"\[?([^/\[\]]+?)\]?:([0-9]{1,5})", address)
    if not match or int(match[2]) > _LAST_PORT:
        raise _no_cluster(address, "the address is not host:port")
    try:
        socket.create_connection((match[1], int(match[2])), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise _no_cluster(address, str(error)) from error


def _no_cluster(address: str, reason: str) -> InputError:
    message = f'no Ray cluster answers at "{address}"'
    fix = (
        "run this command on a node of the cluster, with --address host:port as printed by ray "
        "start --head, such as 10.0.0.1:6379"
    )
    return InputError.of("E852", message, Location("--address"), fix, reason)


class RayExecutor(Executor):
    """Runs each call as a Ray task with one CPU.

    If a worker or node dies, only its own calls fail, with BrokenExecutor. `ray` is the Ray module.
    """

    def __init__(self, ray: Any, needs: Needs) -> None:
        self._ray = ray
        self._needs = ray.put(needs)
        # No retries by Ray: the sweep itself retries lost parts and counts the losses.
        self._task = ray.remote(num_cpus=1, max_retries=0)(on_node)
        self._unfinished: set[Future[Any]] = set()

    @property
    def num_processors(self) -> int:
        """Number of CPUs in the cluster, at least 1 because nodes may still join."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call to the cluster."""
        future: Future[T] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        theirs = self._task.remote(self._needs, fn, *args, **kwargs).future()
        theirs.add_done_callback(partial(self._finish, future))
        return future

    def _finish(self, future: Future[T], theirs: Future[T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if (error := theirs.exception()) is None:
            future.set_result(theirs.result())
        else:
            future.set_exception(self._ours(error))

    def _ours(self, error: BaseException) -> BaseException:
        """Translate an error of Ray into an executor's error."""
        errors = self._ray.exceptions
        died = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            # The node had finished, but died before its result was fetched.
            errors.ObjectLostError,
        )
        if isinstance(error, errors.RayTaskError):
            error = error.cause
        if isinstance(error, died):
            return BrokenExecutor(str(error))
        if not isinstance(error, errors.RayError):
            return error
        message = "a node of the cluster cannot compute parts"
        reason, *_ = str(error).splitlines()
        fix = f"install simtrain {VERSION} with the same Python on every node"
        return InputError.of("E853", message, None, fix, reason)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, which ends what it still computes for this process."""
        unfinished = list(self._unfinished)
        if cancel_futures:
            for future in unfinished:
                future.cancel()
        elif wait:
            futures.wait(unfinished)
        self._ray.shutdown()
