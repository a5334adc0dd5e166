"""Sweeps on a fake Ray cluster; test_ray_cluster.py uses a real one, in CI."""

import operator
import os
import pathlib
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from typing import get_args
from unittest.mock import patch

import pytest
from pytest import MonkeyPatch

from simtrain.errors import InputError
from simtrain.hardware import load as load_module
from simtrain.hardware.load import load_profile
from simtrain.studies.sweep.executor_kinds import EXECUTOR_KINDS
from simtrain.studies.sweep.part import _evaluator
from simtrain.studies.sweep.plan import SweepPlan
from simtrain.studies.sweep.ray_executor import Needs, RayExecutor, connect, needs_of, on_node
from simtrain.studies.sweep.request import ExecutorName
from simtrain.studies.sweep.versions import versions
from tests.helpers.command_line import ROOT, Outcome, call
from tests.helpers.fake_ray import (
    DEATHS,
    FakeRay,
    RayError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)
from tests.helpers.sweep_files import NUM_PARTS, PART_SIZE, files_of, plan_of, run, with_axes

pytestmark = pytest.mark.slow

NEEDS = Needs(versions(), {})


@pytest.fixture(autouse=True)
def _nothing_remains() -> Iterator[None]:
    with patch.dict(os.environ), patch.dict(load_module._given, clear=True):
        os.environ.pop("RAY_ADDRESS", None)
        yield


@pytest.fixture
def address() -> Iterator[str]:
    """Return an address at which a socket listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def sweep(folder: pathlib.Path, *options: str) -> Outcome:
    plan_of(folder)
    command = ("sweep", str(folder / "small.yaml"), "--out", str(folder / "out"))
    return call(*command, "--part-size", str(PART_SIZE), *options)


def test_a_sweep_on_a_cluster_writes_the_same_bytes(
    whole: pathlib.Path, tmp_path: pathlib.Path, address: str, monkeypatch: MonkeyPatch
) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    outcome = sweep(tmp_path, "--executor", "ray", "--address", address)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert files_of(tmp_path / "out") == files_of(whole)
    init, task = ray.received
    assert (init["address"], init["log_to_driver"]) == (address, False)
    assert task == {"num_cpus": 1, "max_retries": 0}
    assert ray.num_shutdowns == 1 and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_the_address_may_be_in_the_environment(
    tmp_path: pathlib.Path, address: str, monkeypatch: MonkeyPatch
) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert sweep(tmp_path, "--executor", "ray").exit_code == 0
    assert ray.received[0]["address"] == address


@pytest.mark.parametrize("death", DEATHS)
def test_parts_that_a_node_loses_are_computed_again(
    plan: SweepPlan, whole: pathlib.Path, tmp_path: pathlib.Path, death: type[RayError]
) -> None:
    """The same executor computes them: a death in a cluster affects no other part."""
    made = []

    def make() -> RayExecutor:
        made.append(RayExecutor(FakeRay([None, death(), None, RayTaskError(death())]), NEEDS))
        return made[-1]

    progress = run(plan, tmp_path / "out", make, in_flight=2)
    assert (progress.num_lost, progress.done, len(made)) == (2, NUM_PARTS, 1)
    assert files_of(tmp_path / "out") == files_of(whole)


def test_a_part_that_no_node_survives_ends_the_sweep(
    plan: SweepPlan, tmp_path: pathlib.Path
) -> None:
    ray = FakeRay([WorkerCrashedError("the worker died")] * 100)
    with pytest.raises(InputError, match="E850 workers died 4 times while they computed part 0"):
        run(plan, tmp_path / "out", lambda: RayExecutor(ray, NEEDS))
    assert ray.num_shutdowns == 1


def test_the_executor_returns_results_and_errors() -> None:
    executor = RayExecutor(FakeRay([None, WorkerCrashedError("killed by signal 9")]), NEEDS)
    assert executor.num_processors == 2
    assert executor.submit(operator.add, 1, 2).result() == 3
    with pytest.raises(BrokenExecutor, match="killed by signal 9"):
        executor.submit(operator.add, 1, 2).result()
    with pytest.raises(ZeroDivisionError):
        executor.submit(operator.truediv, 1, 0).result()


def test_shutdown_cancels_pending_tasks() -> None:
    ray = FakeRay()
    executor = RayExecutor(ray, NEEDS)
    ray.answers = False
    future = executor.submit(operator.add, 1, 2)
    executor.shutdown(cancel_futures=True)
    assert future.cancelled() and ray.num_shutdowns == 1


def test_nodes_receive_the_files_of_profiles(
    tmp_path: pathlib.Path, monkeypatch: MonkeyPatch
) -> None:
    """One profile has a path that the node lacks, the other a shipped name."""
    driver = tmp_path / "driver"
    driver.mkdir()
    monkeypatch.chdir(driver)
    mine = (ROOT / "hw_profiles/a100_sxm4_80gb.yaml").read_text(encoding="utf-8")
    pathlib.Path("mine.yaml").write_text(mine.replace("name: a100", "name: my_a100", 1))
    plan = plan_of(driver, with_axes("cluster: [mine.yaml, h100_sxm]"))
    executor = RayExecutor(FakeRay(), needs_of(plan))
    run(plan, tmp_path / "here")
    _evaluator.cache_clear()
    monkeypatch.chdir(tmp_path)
    driver.rename(tmp_path / "elsewhere")
    run(plan, tmp_path / "there", lambda: executor)
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")
    assert load_profile(driver / "mine.yaml").name.startswith("my_a100")
    assert load_module._given.keys() == {str(driver / "mine.yaml"), "h100_sxm"}


# ---------------------------------------------------------------------------------------- errors


def test_without_ray_the_error_says_what_to_install(
    tmp_path: pathlib.Path, address: str, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = sweep(tmp_path, "--executor", "ray", "--address", address)
    assert outcome.exit_code == 2
    assert "E701 --executor ray needs ray\n  fix: pip install 'simtrain[ray]'" in outcome.stderr


def test_an_address_that_does_not_answer_is_an_error(
    address: str, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(answers=False))
    for where, reason in (
        (address, "Failed to connect to Ray cluster"),
        ("127.0.0.1:1", "Connection refused"),
        ("127.0.0.1:70000", "the address is not host:port"),
        ("auto", "the address is not host:port"),
        ("ray://127.0.0.1:10001", "the address is not host:port"),
    ):
        with pytest.raises(InputError, match=f"E852 no Ray cluster(.|\n)*{reason}(.|\n)*fix: run"):
            connect(where, NEEDS)


def test_the_command_offers_every_kind_of_executor() -> None:
    assert get_args(ExecutorName) == tuple(EXECUTOR_KINDS)


def test_options_without_effect_are_refused(tmp_path: pathlib.Path) -> None:
    for options, expected in (
        (("--address", "head:6379"), "E854 processes on this machine have no address"),
        (("--executor", "ray"), "E854 the address of the Ray cluster is missing"),
    ):
        outcome = sweep(tmp_path, *options)
        assert outcome.exit_code == 2 and expected in outcome.stderr and "fix:" in outcome.stderr


def test_a_node_with_another_version_is_refused() -> None:
    """Its parts could have other bytes."""
    needs = Needs(versions() | {"simtrain": "0.0.9"}, {})
    with pytest.raises(InputError, match=r"E853 a node(.|\n)*this machine has simtrain 0\.0\.9"):
        on_node(needs, operator.add, 1, 2)


def test_a_node_without_simtrain_is_refused() -> None:
    missing = RayTaskError(RaySystemError("No module named 'simtrain'\ntraceback: ..."))
    executor = RayExecutor(FakeRay([missing]), NEEDS)
    with pytest.raises(InputError, match=r"E853(.|\n)*reason: No module named 'simtrain'\n  fix"):
        executor.submit(operator.add, 1, 2).result()
