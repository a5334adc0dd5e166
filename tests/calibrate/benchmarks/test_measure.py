"""Measurements of a machine: complete files, resumed files, and refused measurements."""

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from calibrate.benchmarks import measure as measuring
from calibrate.benchmarks.collectives import groups_that_matter
from calibrate.benchmarks.measure import header
from calibrate.benchmarks.ranks import Ranks
from calibrate.benchmarks.sizes import BenchmarkPart
from calibrate.benchmarks.timing import Timer, summary
from calibrate.records.file import RecordFile, identity, read_records
from calibrate.records.schema import FILE_NAME, AttentionRecord, GemmRecord, LayerRecord, Timing
from simtrain.errors import InputError
from tests.helpers.measure_tiny import TINY

pytestmark = pytest.mark.slow

# The same data type on every machine that runs the tests.
measure = partial(measuring.measure, dtype="bf16")
ALONE = [BenchmarkPart.PRODUCTS, BenchmarkPart.KERNELS, BenchmarkPart.LAYERS]
UNTRAINED = [*ALONE, BenchmarkPart.COLLECTIVES]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything that one process measures."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("complete")
    measure(folder, "cpu", TINY, UNTRAINED)
    return folder


def record(m: int = 1) -> GemmRecord:
    return GemmRecord(m=m, n=2, k=3, time=Timing(median_s=1e-3, spread_s=0.0, num_samples=5))


def identities(folder: Path) -> Counter[str]:
    return Counter(map(identity, read_records(folder)[1]))


def test_a_complete_file_has_every_point_once(complete: Path) -> None:
    found, records = read_records(complete)
    kinds = Counter(each.kind for each in records)
    assert kinds == {"gemm": 15, "kernel": 17, "attention": 4, "launch": 1, "layer": 12}
    assert max(identities(complete).values()) == 1
    assert (found.backend, found.num_ranks, found.num_sms) == ("none", 1, 1)
    assert found.software["torch"] == torch.__version__
    assert found.command.startswith("python -m calibrate")


def test_fused_attention_is_measured_alone_and_in_layers_that_are_held_out(complete: Path) -> None:
    records = read_records(complete)[1]
    alone = [each for each in records if isinstance(each, AttentionRecord)]
    assert [(each.heads, each.seq_length, each.head_size) for each in alone] == [
        (heads, length, 32) for heads in (2, 4) for length in (32, 64)
    ]
    layers = [each for each in records if isinstance(each, LayerRecord)]
    fused = [each for each in layers if each.scenario.get("attention_backend") == "fused"]
    assert [each.scenario["model"]["seq_length"] for each in fused] == [32, 64, 32, 32, 32, 32]
    assert all(each.held_out for each in fused)
    today = [each.scenario for each in fused if "num_query_groups" in each.scenario["model"]]
    assert [("experts" in each["model"], each["recompute"]) for each in today] == [
        (experts, recompute) for experts in (False, True) for recompute in ("none", "full")
    ]


def test_an_incomplete_last_line_is_measured_again(complete: Path, tmp_path: Path) -> None:
    whole = (complete / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(whole[:-7])
    assert len(read_records(tmp_path)[1]) == 48
    assert measure(tmp_path, "cpu", TINY, UNTRAINED).num_added == 1
    assert identities(tmp_path) == identities(complete)


def test_groups_inside_and_across_nodes_by_hand() -> None:
    node = [(g.num_ranks, len(g.groups), g.num_nodes) for g in groups_that_matter(Ranks(0, 8, 8))]
    assert node == [(2, 1, 1), (4, 1, 1), (8, 1, 1)]
    cluster = list(groups_that_matter(Ranks(0, 4, 2)))
    assert [(g.num_ranks, len(g.groups), g.num_nodes) for g in cluster] == [
        (2, 1, 1),
        (2, 1, 2),
        (2, 2, 2),
        (4, 1, 2),
    ]
    assert cluster[2].groups == ((0, 2), (1, 3))
    assert list(groups_that_matter(Ranks())) == []


def test_a_summary_is_the_median_and_half_the_quartile_distance() -> None:
    # Quartiles of 1 to 5 are 2, 3 and 4.
    assert summary([5.0, 1.0, 4.0, 2.0, 3.0]) == Timing(median_s=3.0, spread_s=1.0, num_samples=5)


def test_rounds_repeat_until_the_two_fastest_agree() -> None:
    timer = Timer("cpu", 10.0)
    disturbed = iter([9.0] * 5 + [1.0] * 5 + [5.0] * 5 + [1.04] * 5)
    assert timer._undisturbed(lambda: [next(disturbed)], 1.0) == [summary([1.0] * 5)]
    assert not list(disturbed)
    never = iter([2.0**turn for turn in range(4) for _ in range(5)])
    assert timer._undisturbed(lambda: [next(never)], 1.0) == [summary([1.0] * 5)]
    assert not list(never)


def test_a_folder_of_another_machine_is_refused(complete: Path, tmp_path: Path) -> None:
    lines = (complete / FILE_NAME).read_text().splitlines(keepends=True)
    other = json.loads(lines[0]) | {"device": "Another CPU", "num_ranks": 4}
    (tmp_path / FILE_NAME).write_text(json.dumps(other) + "\n" + "".join(lines[1:]))
    with pytest.raises(InputError) as caught:
        measure(tmp_path, "cpu", TINY, ALONE)
    message = str(caught.value)
    assert "E712 the folder holds the measurements of another machine" in message
    assert "device Another CPU there" in message
    assert "ranks 4 there, 1 here" in message
    assert "an -o of its own" in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Invalid JSON"),
        ('{"kind":"launch"}', "time: Field required"),
        ('{"kind":"lunch"}', "lunch"),
        (
            '{"kind":"launch","time":{"median_s":-1.0,"spread_s":0.0,"num_samples":5}}',
            "time.median_s",
        ),
        (
            '{"kind":"launch","time":{"median_s":NaN,"spread_s":0.0,"num_samples":5}}',
            "time.median_s",
        ),
        (
            '{"kind":"kernel","name":"copy","family":"stream","num_bytes":1'
            + 400 * "0"
            + ',"time":{"median_s":1.0,"spread_s":0.0,"num_samples":5}}',
            "num_bytes: Input should be less than or equal to 1000000000000000000",
        ),
    ],
)
def test_an_invalid_line_is_refused_with_its_place(tmp_path: Path, line: str, reason: str) -> None:
    RecordFile(tmp_path, header("cpu", Ranks())).write(record())
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text() + line + "\n" + record().model_dump_json() + "\n")
    with pytest.raises(InputError) as caught:
        read_records(tmp_path)
    message = str(caught.value)
    assert f"{path}:3:1: E717 the line is no record of a measurement" in message
    assert reason in message


def test_a_full_disk_is_an_error_and_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RecordFile(tmp_path, header("cpu", Ranks()))
    file.write(record())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError) as caught:
        file.write(record(m=2))
    assert "E713 the measurements cannot be written" in str(caught.value)
    assert "No space left on device" in str(caught.value)
    assert read_records(tmp_path)[1][0] == record()
