"""PipeOffload's published runs: out of memory or not, activations, and the order of schedules."""

import itertools

import pytest

from docs.update.offload import activations_gib, result_of
from docs.update.published.pipeoffload import RUNS, Run

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def errors(runs: list[Run]) -> dict[str, float]:
    return {
        f"{run.model} {run.seq_length} {run.schedule}": activations_gib(run) / run.activations_gib
        - 1
        for run in runs
        if run.activations_gib
    }


def test_runs_fit_where_they_did() -> None:
    assert [run for run in RUNS if result_of(run).memory_report.fits != bool(run.mfu)] == []


def test_activations_without_copies() -> None:
    without = errors([run for run in RUNS if not run.schedule.startswith("PO")])
    print(without)
    assert len(without) == 12 and max(map(abs, without.values())) < 0.033


def test_activations_with_copies() -> None:
    """The warm-up's queue of copies makes them too many; `docs/recompute.md` says why."""
    copied = errors([run for run in RUNS if run.schedule.startswith("PO")])
    print(copied)
    assert len(copied) == 9 and min(copied.values()) > 0 and max(copied.values()) < 0.88


def test_the_order_of_schedules_by_mfu() -> None:
    for _, group in itertools.groupby(RUNS, key=lambda run: (run.model, run.seq_length)):
        ran = sorted((run for run in group if run.mfu), key=lambda run: run.mfu or 0)
        for slow, fast in itertools.pairwise(ran):
            assert result_of(slow).mfu <= result_of(fast).mfu, (slow, fast)
