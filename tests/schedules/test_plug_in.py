"""A schedule is added with a class in a file of any installed package, nothing else."""

import json
import pathlib

import pytest

from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

V_SHAPED_FILE = pathlib.Path(__file__).parents[1] / "helpers" / "v_shaped.py"
SETTINGS = ("parallelism.pipeline=4", "batch.micro=1", "batch.global=8", "overlap.pipeline=true")


def settings(schedule: str, *more: str) -> list[str]:
    """Return the options of a run with a schedule."""
    written = *SETTINGS, f"schedule={schedule}", *more
    return [word for setting in written for word in ("--set", setting)]


V_SHAPED = settings("v_shaped", "parallelism.interleave=2")


def test_the_first_rank_of_a_v_has_both_ends_of_the_model(tmp_path: pathlib.Path) -> None:
    """It needs no all-reduce of a tied embedding, and the middle ranks hold equally much."""
    files = {"v_shaped.py": V_SHAPED_FILE.read_text("utf-8")}
    parts = {"schedules": {"v_shaped": "v_shaped:VShaped"}}
    outsider = Outsider.install(tmp_path / "outsider", files, parts)
    loop = settings("interleaved", "parallelism.interleave=2")
    traces, results = [], []
    for number, options in enumerate((V_SHAPED, loop)):
        trace = tmp_path / f"{number}.json"
        printed = outsider.call("run", "gpt2_1_5b", *options, "--format=json", "-o", str(trace))
        results.append(json.loads(printed))
        traces.append(trace.read_text("utf-8"))
    assert "embedding gradient all-reduce" not in traces[0]
    assert "embedding gradient all-reduce" in traces[1]
    (first, *others), (one_end, *middle, _) = (
        [stage["components_bytes"]["optimizer"] for stage in result["memory"]["stages"]]
        for result in results
    )
    assert len({*others, *middle}) == 1 and first > one_end > others[0]
    changes = [word for word in V_SHAPED if word != "--set"]
    simpy = f"run(load_scenario('gpt2_1_5b', {changes}), engine='simpy').iteration_time_s"
    printed = outsider.spawn("-c", f"from simtrain import *; print({simpy})").stdout
    assert float(printed) == results[0]["iteration_time_s"]
