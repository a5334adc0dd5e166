"""Traces of a drawn iteration: what each replica runs, and where it waits."""

import gzip
import itertools
import json
import pathlib
from typing import Any

import pytest

import simtrain
from simtrain.render.traces.replicas import write_replica_trace
from simtrain.studies.variation.traced import traced_draw
from tests.helpers.command_line import call

WORDS = ("run", "table5_22b_present", "--set", "parallelism.data=3", "--set", "batch.global=12")


def events_of(text: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]


def test_a_trace_has_every_replica_and_ends_with_the_drawn_time(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "draws.json"
    outcome = call(*WORDS, "--draws", "20", "--draws-trace", str(file), "--json")
    assert outcome.exit_code == 0
    time = json.loads(outcome.stdout)["variation"]["iteration_time_s"]
    events = events_of(file.read_text(encoding="utf-8"))
    assert {event["pid"] for event in events} == {0, 1, 2}
    end_us = max(event["ts"] + event["dur"] for event in events)
    assert time["p50"] <= end_us / 1e6 + 1e-9
    assert end_us / 1e6 <= time["most"] + 1e-9
    for replica in range(3):
        for stream in {event["tid"] for event in events}:
            own = sorted(
                (event["ts"], event["dur"])
                for event in events
                if (event["pid"], event["tid"]) == (replica, stream)
            )
            for (start, length), (following, _) in itertools.pairwise(own):
                assert start + length <= following + 0.01


def test_all_replicas_reduce_gradients_together(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "draws.json.gz"
    assert call(*WORDS, "--draws", "5", "--draws-trace", str(file)).exit_code == 0
    events = events_of(gzip.decompress(file.read_bytes()).decode())
    reductions = [event for event in events if event["name"] == "gradient reduction"]
    assert len(reductions) == 3 and len({(each["ts"], each["dur"]) for each in reductions}) == 1
    end_us = max(each["ts"] + each["dur"] for each in events if each["cat"] == "backward")
    assert reductions[0]["ts"] >= end_us - 0.01


def test_equal_draws_are_equal_files(tmp_path: pathlib.Path) -> None:
    contents = []
    for name in ("one.json.gz", "two.json.gz"):
        call(*WORDS, "--draws", "5", "--seed", "3", "--draws-trace", str(tmp_path / name))
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--draws", "5", "--draws-trace", "trace.csv"), "E117"),
        (("--draws", "5", "--draws-trace", "no/folder/trace.json"), "E1"),
        (("--draws-trace", "trace.json"), "E908"),
        (("--draws", "5", "--ops", "--draws-trace", "trace.json"), "E908"),
    ],
)
def test_a_wrong_trace_has_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call("run", "table5_22b_present", *words)
    assert answer.exit_code == 2 and code in answer.stderr, answer.stderr
    assert [*tmp_path.iterdir()] == []


def test_a_slow_gpu_keeps_its_replica_busy_and_the_others_waiting(tmp_path: pathlib.Path) -> None:
    still = {"kernels": 0, "collectives": 0, "gpu_spread": 0, "pauses": {"per_gpu_hour": 0}}
    scenario = simtrain.load_scenario("table5_22b_present").replace(
        {"parallelism.data": 4, "batch.global": 16}
        | {"variation": still | {"slow": {"rank": 20, "factor": 2}}}
    )
    result = simtrain.simulate(scenario)
    write_replica_trace(traced_draw(result, simtrain.draw(result)), tmp_path / "slow.json")
    events = events_of((tmp_path / "slow.json").read_text(encoding="utf-8"))
    # Rank 20 is in replica 2; one other stands for the rest.
    assert {event["pid"] for event in events} == {0, 2}
    ends = {
        replica: max(
            event["ts"] + event["dur"]
            for event in events
            if event["pid"] == replica and event["cat"] == "backward"
        )
        for replica in (0, 2)
    }
    assert ends[2] > 1.5 * ends[0]


def test_a_trace_of_kernels_says_that_it_does_not_vary(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "usual.json"
    shown = call(*WORDS, "--set", "variation.kernels=0.02", "--draws", "5", "--trace", str(file))
    assert "without variation" in shown.stdout
    assert json.loads(file.read_text())["traceName"].endswith(", without variation")
