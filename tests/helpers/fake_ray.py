"""The part of Ray that simtrain uses, in this process; test_ray_cluster.py uses the real one."""

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any


class RayError(Exception):
    """Base class of Ray's errors."""


class RayTaskError(RayError):
    """Error that a task raised, as Ray passes it on."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"ray::on_node() {cause}")
        self.cause = cause


class WorkerCrashedError(RayError): ...


class FakeRay(ModuleType):
    """The module `ray`. Arguments are pickled; call i fails with `failures[i]`
    unless it is None.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, failures: Sequence[Exception | None] = (), *, answers: bool = True) -> None:
        super().__init__("ray")
        self.failures = list(failures)
        self.answers = answers
        self.received: list[dict[str, Any]] = []
        self.num_shutdowns = 0

    def init(self, **options: Any) -> None:
        if not self.answers:
            raise ConnectionError("Failed to connect to Ray cluster")
        self.received.append(options)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0, "memory": 1e9}

    def shutdown(self) -> None:
        self.num_shutdowns += 1

    def put(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def remote(self, **options: Any) -> Callable[[Any], SimpleNamespace]:
        self.received.append(options)
        return lambda fn: SimpleNamespace(remote=lambda *args: self._reference(fn, *args))

    def _reference(self, fn: Any, needs: bytes, *args: Any) -> SimpleNamespace:
        sent = pickle.dumps(args)
        return SimpleNamespace(future=lambda: self._future(fn, needs, sent))

    def _future(self, fn: Any, needs: bytes, sent: bytes) -> "Future[Any]":
        future: Future[Any] = Future()
        if not self.answers:
            return future
        failure = self.failures.pop(0) if self.failures else None
        try:
            if failure:
                raise failure
            future.set_result(fn(pickle.loads(needs), *pickle.loads(sent)))
        except RayError as error:
            future.set_exception(error)
        except Exception as error:
            future.set_exception(RayTaskError(error))
        return future
