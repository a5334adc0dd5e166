"""Output of nccl-tests, as text and JSON, read as records."""

import json
import pathlib

import pytest

from calibrate.records.file import RecordFile, read_records
from calibrate.records.nccl_tests import add_log, read_log, read_nccl_tests
from simtrain.errors import InputError
from tests.helpers.validation_records import HEADER as NODE

HEADER = NODE.model_copy(
    update={"backend": "nccl", "num_ranks": 8, "software": {"torch": "2.13.0", "cuda": "12.8"}}
)
TEXT = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 8388608 step: 1024(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on       node device  0 [0x07] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
           0             0     float     sum      -1    20.00    0.00    0.00      0    19.00
        8192          2048     float     sum      -1    30.00    0.27    0.48      0    29.00
     8388608       2097152     float     sum      -1   100.00   83.89  146.80      0    99.00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 73.6
"""


def written(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "all_reduce.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_text_output_gives_a_record_per_row(tmp_path: pathlib.Path) -> None:
    """The bus bandwidth of an all-reduce over 8 ranks is 7/4 of its algorithm bandwidth. A row of
    size 0 gives no record.
    """
    small, large = read_nccl_tests(written(tmp_path, TEXT), "all_reduce", 8)
    assert (small.array_bytes, small.time.median_s) == (8192, pytest.approx(30e-6))
    assert (large.array_bytes, large.num_ranks, large.num_nodes) == (8388608, 8, 1)
    assert (large.time.median_s, large.time.num_samples) == (pytest.approx(100e-6), 20)


def test_json_output_gives_a_record_per_result(tmp_path: pathlib.Path) -> None:
    out_of_place = {"time": 100.0, "alg_bw": 83.89, "bus_bw": 73.4, "nwrong": 0}
    data = {"results": [{"size": 8388608, "count": 1, "out_of_place": out_of_place}]}
    (record,) = read_nccl_tests(written(tmp_path, json.dumps(data)), "all_gather", 8, num_nodes=2)
    assert (record.op, record.array_bytes, record.num_nodes) == ("all_gather", 8388608, 2)


def test_adding_the_same_output_twice_adds_its_records_once(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "measured"
    RecordFile(folder, HEADER)
    path = written(tmp_path, TEXT)
    added = [add_log(folder, read_log(path, num_ranks=8, num_nodes=2)) for _ in range(2)]
    assert added == [2, 0]
    _, records = read_records(folder)
    assert records == read_nccl_tests(path, "all_reduce", 8, 2)


LISTED = "".join(
    f"#  Rank {rank:2} Group  0 Pid 47{rank} on  node{rank // 4} device  {rank % 4} [0x0{rank}] "
    "NVIDIA H100 80GB HBM3\n"
    for rank in range(8)
)


def test_a_log_lists_its_ranks_nodes_and_device(tmp_path: pathlib.Path) -> None:
    lines = TEXT.splitlines(keepends=True)
    log = read_log(written(tmp_path, "".join([*lines[:3], LISTED, *lines[4:]])))
    assert log.device == "NVIDIA H100 80GB HBM3"
    assert {(r.op, r.num_ranks, r.num_nodes) for r in log.records} == {("all_reduce", 8, 2)}


def test_the_collective_is_read_from_the_header_before_the_name(tmp_path: pathlib.Path) -> None:
    started = "# Collective test starting: alltoall_perf\n" + TEXT.replace("146.80", " 73.40")
    path = written(tmp_path, started.replace("0.48", "0.24"))
    assert {record.op for record in read_log(path, num_ranks=8).records} == {"all_to_all"}


@pytest.mark.parametrize(("name", "says"), [("log.txt", "--op"), ("all_reduce.txt", "--ranks")])
def test_a_log_that_does_not_say_what_it_is_needs_an_option(
    tmp_path: pathlib.Path, name: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(InputError, match="E711") as caught:
        read_log(path)
    assert f"fix: {says}" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "AMD EPYC", "backend": "gloo", "software": {"torch": "2.13.0"}},
        {"device": "NVIDIA H100 80GB HBM3"},
    ],
)
def test_a_log_of_another_machine_does_not_join_a_folder(
    tmp_path: pathlib.Path, changes: dict[str, object]
) -> None:
    folder = tmp_path / "measured"
    RecordFile(folder, HEADER.model_copy(update=changes))
    with pytest.raises(InputError, match=r"E712 the folder holds .* another machine") as caught:
        add_log(folder, read_log(written(tmp_path, TEXT), num_ranks=8))
    assert "NVIDIA A100-SXM4-80GB" in str(caught.value) and "--base" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "holds no row"),
        ("# only comments\n", "", "holds no row"),
        ('{"results": [{"size": 8}]}', "", "is not what nccl-tests -J writes"),
        ("{broken", "", "is not what nccl-tests -J writes"),
        ("8192 2048 float\n", ":1", "has 3 columns"),
        (TEXT.replace("30.00", "  nan"), ":10", "not all finite"),
        (TEXT.replace("30.00", "-1.00"), ":10", "not all finite"),
        (TEXT.replace("30.00", "  0.0"), ":10", "the time is 0"),
        (TEXT.replace("30.00", "thirt"), ":10", "could not convert string to float"),
        (TEXT.replace("146.80", " 73.40"), ":11", "check --op and --ranks"),
        (TEXT.replace("     8192 ", f"{10**400} "), ":10", "not all finite"),
        (TEXT.replace("     8192 ", f"{10**19} "), ":10", "are no collective"),
    ],
)
def test_files_that_nccl_tests_did_not_write_are_refused_with_their_line(
    tmp_path: pathlib.Path, text: str, place: str, words: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_nccl_tests(path, "all_reduce", 8)
    assert str(caught.value).startswith(f"{path}{place}: E711 ")
    assert words in str(caught.value)
