"""One's own runs anchor intervals: those of a scenario's time, or of a table (--measured)."""

import json
import math
import pathlib
import re
from dataclasses import replace

import pytest

from simtrain.errors import InputError
from simtrain.iteration.report.difference import Difference
from simtrain.scenario import load_scenario
from simtrain.studies.anchors import own_runs
from simtrain.studies.search.run import search
from simtrain.studies.simulation import simulate
from simtrain.units import GIB
from tests.helpers.command_line import call


def test_own_runs_move_an_interval_but_not_the_time(tmp_path: pathlib.Path) -> None:
    plain, table = simulate(load_scenario("llama3_8b")), tmp_path / "runs.csv"
    head = "layers,hidden,heads,seq,gpus,tp,micro_batch,global_batch,iteration_s"
    table.write_text(f"{head}\n32,4096,32,8192,8,1,1,64,8.9\n", "utf-8")
    slower = f"llama3_8b={1.1 * plain.iteration_time_s} s"
    runs = own_runs([slower, str(table)], load_scenario, plain.scenario)
    result = replace(plain, anchors=runs)
    assert result.iteration_time_s == plain.iteration_time_s
    assert "(2 runs): expect" in result.interval.basis
    page = call("run", "llama3_8b", "--measured", "llama3_8b=9.2 s").stdout
    assert re.search(r"8\.04 s an iteration \(expect 9\.1, 8\.\d-9\.\d\)", page)
    sources = call("run", "llama3_8b", "--show", "sources", "--measured", "llama3_8b=9.2 s").stdout
    assert "in 90 %; your runs like this one took 14 % longer (1 run): expect 9.1" in sources
    log = tmp_path / "x.log"
    for line in ("train_step_timing in s: 9.25 |", f"tps: {64 * 8192 / 8 / 9.25:,.0f} "):
        log.write_text(line, "utf-8")
        (run,) = own_runs([f"llama3_8b={log}"], load_scenario, plain.scenario)
        assert math.exp(run.log_ratio) * plain.iteration_time_s == pytest.approx(9.25, rel=1e-3)
    table.write_text(f"{head}\n32,4096,32,8192,8,16,1,64,8.9\n", "utf-8")
    wrong = {
        str(table): "none of 1 runs counts: 8 GPUs",
        "llama3_8b=9": r'"9" has no unit\n.*write "llama3_8b=10.5 s", "llama3_8b=61.3 GiB"',
        "llama3_8b=9 s and 61 GiB": '"s and 61 GiB" is not',
        "llama3_8b=9 s, 8 s": "one time and one peak",
        "llama3_8b=9 s, 1 B": "1 bytes are no peak",
        "llama3_8b=1 ns, 9 GiB": "is no time of an iteration",
    }
    for text, message in wrong.items():
        with pytest.raises(InputError, match=message):
            own_runs([text], load_scenario, plain.scenario)


def test_own_peaks_move_what_to_expect_but_not_the_peak(tmp_path: pathlib.Path) -> None:
    plain, table = simulate(load_scenario("llama3_8b")), tmp_path / "runs.csv"
    peak_gib = plain.memory.fullest.peak_bytes / GIB
    head = "layers,hidden,heads,seq,gpus,tp,micro_batch,global_batch,peak_mem_gb,iteration_s"
    table.write_text(f"{head}\n32,4096,32,8192,8,1,1,64,41.2,8.9\n", "utf-8")
    text = f"llama3_8b=8.9 s, {1.2 * peak_gib:.6f} GiB"
    time_only, peak_only = "llama3_8b=8.9 s", text.replace("8.9 s, ", "")
    both, time, peak, of_table = (
        own_runs([each], load_scenario, plain.scenario)[0]
        for each in (text, time_only, peak_only, str(table))
    )
    assert (both.log_ratio, None) == (time.log_ratio, time.peak_log_ratio)
    assert (None, both.peak_log_ratio) == (peak.log_ratio, peak.peak_log_ratio)
    assert both.peak_log_ratio == pytest.approx(math.log(1.2), abs=1e-6)
    assert of_table.log_ratio and of_table.peak_log_ratio
    results = [replace(plain, anchors=runs) for runs in ([time], [peak], [peak, peak, peak])]
    assert results[0].fit == plain.fit and results[1].interval == plain.interval
    assert len({result.memory.fullest.peak_bytes for result in results}) == 1
    one, three = (result.memory_report.peak_interval for result in results[1:])
    assert peak_gib * GIB < one.expected_bytes < three.expected_bytes < 1.2 * peak_gib * GIB
    assert three.p95_bytes / three.expected_bytes < one.p95_bytes / one.expected_bytes
    elsewhere = replace(peak, machine="a100_sxm4_80gb")
    assert replace(plain, anchors=[elsewhere]).fit == plain.fit


def test_each_answer_says_what_own_peaks_make_of_it() -> None:
    own = ("--measured", "llama3_8b=9.2 s, 83 GiB")
    said = "your runs' peaks were 130 % larger (1 run): expect 73.97 GiB"
    wrapped = "".join(call("run", "llama3_8b", *own).stdout.replace("\n", " "))
    assert said in wrapped and "(expect 74.0, 64.7-84.5): may not fit" in wrapped
    for words in (
        ("run", "llama3_8b", "--show", "sources"),
        ("cost", "llama3_8b", "--tokens", "1T", "--goodput", "1"),
        ("compare", "llama3_8b", "llama3_8b", "--change", "batch.micro=2"),
        ("search", "llama3_8b", "--gpus", "8", "--set", "batch.global=16", "--tokens", "1T"),
        ("search", "llama3_8b", "--gpus", "8", "--set", "batch.global=16", "--hold", "recompute"),
    ):
        page = call(*words, *own).stdout.replace("\n", " ")
        assert "your runs' peaks were 130 % larger (1 run)" in page, words
    assert "fits (" not in page


def test_own_runs_rank_layouts_by_expected_time_and_the_proof_stays() -> None:
    base = load_scenario("llama3_8b", ["batch.global=64"])
    slower = own_runs([f"llama3_8b={2 * simulate(base).iteration_time_s} s"], load_scenario, base)
    plain, ours = (search(base, 8, top=8, anchors=runs) for runs in ((), slower))
    by_place = {each.point: each.run for each in plain.ranked}
    assert all(by_place[each.point].mfu == each.run.mfu for each in ours.ranked)
    expected = [each.anchored.expected_s for each in ours.ranked if each.anchored]
    assert expected == sorted(expected) and len(expected) == 8
    assert ours.ranked[ours.fastest_place].point == plain.best.point and ours.gap == plain.gap
    assert "interval_s" in ours.best.to_dict() and "interval_s" not in plain.best.to_dict()


def test_a_comparison_says_what_ones_own_runs_make_of_each_scenario() -> None:
    words = ("compare", "llama3_8b", "llama3_70b", "--measured", "llama3_8b=9.2 s")
    runs = own_runs(["llama3_8b=9.2 s"], load_scenario, load_scenario("llama3_8b"))
    for each in json.loads(call(*words, "--format", "json").stdout)["scenarios"]:
        result = replace(simulate(load_scenario(each["name"])), anchors=runs)
        assert each["interval_s"]["p50"] == result.interval.expected_s
    assert "A: your runs like this one took" in call(*words).stdout


def test_a_saving_is_told_from_none_as_the_ratio_of_two_equal_runs_is() -> None:
    column = json.loads(call("compare", "llama3_8b", "--format", "json").stdout)["scenarios"][0]
    result = simulate(load_scenario("llama3_8b"))
    assert column["least_told"] == pytest.approx(1 - Difference(result, result).ratio.p5)
    least = f"A saving below {column['least_told']:.1%} (A) cannot be told from none."
    assert least in call("compare", "llama3_8b").stdout
