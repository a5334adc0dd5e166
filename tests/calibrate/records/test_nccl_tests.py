"""Output of nccl-tests, as text and JSON, read as records."""

import json
import pathlib

import pytest

from calibrate.records.nccl_tests import is_log, read_log
from simtrain.errors import InputError

LISTED = "".join(
    f"#  Rank {rank:2} Group  0 Pid 47{rank} on  node{rank // 4} device  {rank % 4} [0x0{rank}] "
    "NVIDIA H100 80GB HBM3\n"
    for rank in range(8)
)
TEXT = f"""\
# nThread 1 nGpus 8 minBytes 8 maxBytes 8388608 step: 1024(factor) warmup iters: 5 iters: 20
#
# Using devices
{LISTED}#
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
    path = written(tmp_path, TEXT)
    assert is_log(path)
    small, large = read_log(path).records
    assert (small.array_bytes, small.time.median_s) == (8192, pytest.approx(30e-6))
    assert (large.array_bytes, large.num_ranks, large.num_nodes) == (8388608, 8, 2)
    assert (large.time.median_s, large.time.num_samples) == (pytest.approx(100e-6), 20)


def test_json_output_gives_a_record_per_result(tmp_path: pathlib.Path) -> None:
    out_of_place = {"time": 100.0, "alg_bw": 83.89, "bus_bw": 146.8, "nwrong": 0}
    data = {
        "devices": [{"hostname": f"node{rank // 4}", "device_info": "H100"} for rank in range(8)],
        "results": [{"size": 8388608, "count": 1, "out_of_place": out_of_place}],
    }
    path = written(tmp_path, json.dumps(data))
    assert is_log(path)
    (record,) = read_log(path).records
    assert (record.op, record.array_bytes, record.num_nodes) == ("all_reduce", 8388608, 2)


def test_a_log_lists_its_ranks_nodes_and_device(tmp_path: pathlib.Path) -> None:
    log = read_log(written(tmp_path, TEXT))
    assert log.device == "NVIDIA H100 80GB HBM3"
    assert {(r.op, r.num_ranks, r.num_nodes) for r in log.records} == {("all_reduce", 8, 2)}


def test_the_collective_is_read_from_the_header_before_the_name(tmp_path: pathlib.Path) -> None:
    started = "# Collective test starting: alltoall_perf\n" + TEXT.replace("146.80", " 73.40")
    path = written(tmp_path, started.replace("0.48", "0.24"))
    assert {record.op for record in read_log(path).records} == {"all_to_all"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("log.txt", TEXT, "which collective"),
        ("all_reduce.txt", TEXT.replace("Rank", "rank"), "two ranks"),
    ],
)
def test_a_log_that_does_not_say_what_it_is_is_refused(
    tmp_path: pathlib.Path, name: str, text: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"E711 .*{says}"):
        read_log(path)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "does not list two ranks"),
        (LISTED, "", "holds no row"),
        ('{"results": [{"size": 8}]}', "", "is not what nccl-tests -J writes"),
        ("{broken", "", "is not what nccl-tests -J writes"),
        (LISTED + "8192 2048 float\n", ":9", "has 3 columns"),
        (TEXT.replace("30.00", "  nan"), ":17", "not all finite"),
        (TEXT.replace("30.00", "-1.00"), ":17", "not all finite"),
        (TEXT.replace("30.00", "  0.0"), ":17", "the time is 0"),
        (TEXT.replace("30.00", "thirt"), ":17", "could not convert string to float"),
        (TEXT.replace("146.80", " 73.40"), ":18", "the file of one run"),
        (TEXT.replace("     8192 ", f"{10**400} "), ":17", "not all finite"),
        (TEXT.replace("     8192 ", f"{10**19} "), ":17", "are no collective"),
    ],
)
def test_files_that_nccl_tests_did_not_write_are_refused_with_their_line(
    tmp_path: pathlib.Path, text: str, place: str, words: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_log(path)
    assert str(caught.value).startswith(f"{path}{place}: E711 ")
    assert words in str(caught.value)
