"""One's own runs anchor the interval of `run --measured`: a scenario's time, or a table."""

import pathlib

import pytest

from simtrain.errors import InputError
from simtrain.scenario import load_scenario
from simtrain.studies.anchors import anchored
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import call


def test_own_runs_move_an_interval_but_not_the_time(tmp_path: pathlib.Path) -> None:
    plain, table = simulate(load_scenario("llama3_8b")), tmp_path / "runs.csv"
    head = "layers,hidden,heads,seq,gpus,tp,micro_batch,global_batch,iteration_s"
    table.write_text(f"{head}\n32,4096,32,8192,8,1,1,64,8.9\n", "utf-8")
    slower = f"llama3_8b={1.1 * plain.iteration_time_s} s"
    result = anchored(plain, [slower, str(table)], load_scenario)
    assert result.iteration_time_s == plain.iteration_time_s
    assert "(2 runs): expect" in result.interval.basis
    page = call("run", "llama3_8b", "--measured", "llama3_8b=9.2 s").stdout
    assert "8.04 s an iteration (expect 9.1, 8.6-9.8)" in page
    table.write_text(f"{head}\n32,4096,32,8192,8,16,1,64,8.9\n", "utf-8")
    for text, message in ((str(table), "none of 1 runs counts: 8 GPUs"), ("x=9", "has no unit")):
        with pytest.raises(InputError, match=message):
            anchored(plain, [text], load_scenario)
