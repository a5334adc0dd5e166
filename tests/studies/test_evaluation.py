"""Evaluators use profiles as they are now."""

import os
import pathlib
import sys

import pytest

import simtrain
from simtrain.engine import compiled
from simtrain.errors import InputError
from simtrain.studies.evaluation import Evaluator
from tests.helpers.command_line import ROOT
from tests.helpers.toys import small


def test_a_profile_that_changed_is_read_again(tmp_path: pathlib.Path) -> None:
    """This holds also if its size stays and its new time is a nanosecond later."""
    text = (ROOT / "hw_profiles/a100_sxm4_80gb.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    scenario = small(cluster=str(path))
    evaluator = Evaluator()
    before = evaluator.evaluate(scenario).run
    written = path.stat()
    slower = text.replace("value: 1.61 TB/s", "value: 1.11 TB/s")
    assert slower != text
    path.write_text(slower, encoding="utf-8")
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns + 1))
    after = evaluator.evaluate(scenario).run
    assert before is not None and after is not None
    assert after.iteration_time_s == simtrain.run(scenario).iteration_time_s
    assert after.iteration_time_s > before.iteration_time_s


def test_numba_is_loaded_only_after_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "has_numba", lambda: True)
    monkeypatch.setattr(compiled, "LARGE", 10)
    monkeypatch.setattr(compiled, "_num_simulated", 0)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    found = [compiled.runs_compiled(number) for number in (4, 5, 0, 1, 0)]
    assert found == [False, False, False, True, True]


def test_without_numba_the_same_loops_run_as_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = small({"sequence_parallel": True})
    with_numba = Evaluator(engine="compiled").evaluate(scenario)
    monkeypatch.setattr(compiled, "has_numba", lambda: False)
    without = Evaluator().evaluate(scenario)
    assert without.run and with_numba.run and without.run.to_dict() == with_numba.run.to_dict()
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(InputError, match="E701 engine compiled needs numba\n  fix: pip install"):
        simtrain.run(scenario, engine="compiled")
