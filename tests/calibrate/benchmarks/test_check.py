"""The self-test of a machine: what is off, and what to do then."""

import json

import pytest

from calibrate.benchmarks import check
from calibrate.benchmarks.check import (
    check_machine,
    clock_findings,
    load_findings,
    process_findings,
)
from calibrate.benchmarks.ranks import Ranks
from calibrate.benchmarks.self_test import Finding, SelfTest
from simtrain.base.plain_data import plain_data
from tests.views.test_render import page

pytestmark = pytest.mark.slow  # imports torch

CLOCKS = {
    "clocks.sm": "1755 MHz",
    "clocks.max.sm": "1980 MHz",
    "power.draw": "690.1 W",
    "temperature.gpu": "61",
}


def gpus(monkeypatch: pytest.MonkeyPatch, *names: str, has_peers: bool = True) -> list[Finding]:
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(names))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda gpu: names[gpu])
    monkeypatch.setattr("torch.cuda.can_device_access_peer", lambda a, b: has_peers or b != 1)
    return [*check._gpus(Ranks(0, 1, 1))]


def test_a_node_of_equal_gpus_with_access_is_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, measured, peers = gpus(monkeypatch, "NVIDIA H100", "NVIDIA H100")
    assert (kinds.measured, kinds.is_ok, peers.is_ok) == ("2 of NVIDIA H100", True, True)
    assert measured.is_ok is None and "--nproc-per-node 2" in measured.advice


def test_mixed_gpus_and_missing_access_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, _, peers = gpus(monkeypatch, "NVIDIA A100", "NVIDIA H100", has_peers=False)
    assert kinds.is_ok is False and "CUDA_VISIBLE_DEVICES" in kinds.advice
    assert peers.is_ok is False and peers.measured == "missing from 0 to 1"


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, [True]),
        ({"clocks.sm": "1200 MHz"}, [False]),
        ({"clocks.sm": "[N/A]"}, []),
        ({"clocks.sm": ""}, []),
    ],
)
def test_a_low_clock_under_load_is_off(changes: dict[str, str], verdicts: list[bool]) -> None:
    assert [finding.is_ok for finding in clock_findings(CLOCKS | changes)] == verdicts
    assert not [*clock_findings({})]


@pytest.mark.parametrize(
    ("running", "num_processors", "verdicts"),
    [(2.97, 2, [False]), (0.4, 2, [True]), (2.97, 128, [True]), (None, 2, [])],
)
def test_a_busy_machine_is_not_ready(
    running: float | None, num_processors: int, verdicts: list[bool]
) -> None:
    found = [*load_findings(running, num_processors)]
    assert [finding.is_ok for finding in found] == verdicts
    assert all("wait" in finding.advice for finding in found)


@pytest.mark.parametrize(
    ("listed", "num_own", "verdicts"),
    [("11\n12", 2, [True]), ("11\n12\n13", 2, [False]), ("", 2, []), (None, 2, [])],
)
def test_other_processes_on_the_gpus_are_off(
    listed: str | None, num_own: int, verdicts: list[bool]
) -> None:
    assert [each.is_ok for each in process_findings(listed, num_own)] == verdicts


def test_a_time_is_off_if_it_is_a_quarter_above_the_profiles() -> None:
    assert check.time_finding("a copy", 1.2e-3, 1e-3, "look").is_ok is True
    slow = check.time_finding("a copy", 1.3e-3, 1e-3, "look")
    assert slow.is_ok is False and slow.advice == "look"
    assert check.time_finding("a copy", 1.3e-3, None, "look").is_ok is None


def test_the_page_says_what_to_do() -> None:
    slow = check.time_finding("a copy", 1.3e-3, 1e-3, "look at nvidia-smi")
    outcome = SelfTest("NVIDIA H100", "h100_sxm", (Finding("software", "torch 2.9"), slow))
    shown = page(outcome.view())
    assert "OFF" in shown and "look at nvidia-smi" in shown and "FAILED: off: a copy" in shown
    data = json.loads(json.dumps(plain_data(outcome)))
    assert data["ok"] is False and data["findings"][1]["advice"] == "look at nvidia-smi"


def test_a_cpu_is_checked_without_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_BUDGET_S", 0.01)
    monkeypatch.setattr(check, "_SIDE", {"cpu": 64})
    monkeypatch.setattr(check, "_ARRAY_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(check, "mean_running", lambda: 0.0)
    ranks, outcome = check_machine("cpu")
    assert ranks.size == 1 and outcome.ok and outcome.profile is None
    names = [finding.name for finding in outcome.findings]
    assert "a product of 64³ in fp32" in names and names[-1] == "an all-reduce"
