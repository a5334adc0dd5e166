"""Tables of timed products become records, or are refused at the line that is wrong."""

import pathlib

import pytest

from calibrate.records.file import read_records
from calibrate.records.product_tables import read_products
from calibrate.records.schema import GemmRecord
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.workload.work import Gemm
from tests.helpers.command_line import call


def table(tmp_path: pathlib.Path, text: str) -> pathlib.Path:
    file = tmp_path / "products.csv"
    file.write_text(text, "utf-8")
    return file


def test_times_and_rates_are_the_same(tmp_path: pathlib.Path) -> None:
    """2 · 4096 · 4096 · 1024 FLOPs in 100 us are 343.6 TFLOP/s."""
    (by_time,) = read_products(table(tmp_path, "m,n,k,time_us\n4096,4096,1024,100\n"))
    (by_rate,) = read_products(table(tmp_path, "M,N,K,TFLOPS\n4096,4096,1024,343.59738368\n"))
    assert by_time.time.median_s == pytest.approx(1e-4) == by_rate.time.median_s
    assert (by_time.layout, by_time.dtype, by_time.batch) == ("TN", "bf16", 1)


def test_repeated_products_have_a_median(tmp_path: pathlib.Path) -> None:
    lines = "m,n,k,layout,dtype,time_ms\n" + "".join(
        f"64,64,64,nn,FP16,{time_ms}\n" for time_ms in (3, 1, 2)
    )
    (record,) = read_products(table(tmp_path, lines))
    assert (record.layout, record.dtype) == ("NN", "fp16")
    assert record.time.median_s == pytest.approx(2e-3) and record.time.num_samples == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column m, n, k"),
        ("m,n,k\n1,2,3\n", "no column of times"),
        ("m,n,k,time_us\n", "no products"),
        ("m,n,k,time_us,size\n1,2,3,4,5\n", "unknown column 'size'"),
        ("m,n,k,time_us\n1,2,x,4\n", 'k is "x"'),
        ("m,n,k,time_us\n1,2,-3,4\n", 'k is "-3"'),
        (f"m,n,k,time_us\n1,2,{10**400},4\n", "not a whole number"),
        ("m,n,k,time_us\n1,2,3,nan\n", 'time_us is "nan"'),
        ("m,n,k,time_us\n1,2,3,0\n", "not a number above 0"),
        ("m,n,k,time_us\n1,2,3,\n", "no time"),
        ("m,n,k,time_us\n1,2\n", 'k is ""'),
        ("m,n,k,time_us,dtype\n1,2,3,4,int4\n", "dtype"),
        ("m,n,k,time_s\n1,2,3,1e300\n", "is no time of a product"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: pathlib.Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match="E727") as caught:
        read_products(table(tmp_path, text))
    assert words in str(caught.value)


def test_a_profile_fitted_to_products_has_their_rates(tmp_path: pathlib.Path) -> None:
    """Products at 80 % of h100_sxm's rates: the fit has about those, and all else is the base's."""
    from simtrain.durations.model import DurationModel

    base = DurationModel(load_profile("h100_sxm"))
    sizes = [
        (m, n, k) for m in (2048, 4096, 8192) for n in (4096, 14336) for k in (2048, 4096, 8192)
    ]
    lines = ["m,n,k,layout,time_us"]
    for (m, n, k), layout in ((size, layout) for size in sizes for layout in ("TN", "NN", "NT")):
        seconds = base.seconds(Gemm(m, n, k, layout=layout)) / 0.8
        lines.append(f"{m},{n},{k},{layout},{1e6 * seconds}")
    file, folder = table(tmp_path, "\n".join(lines)), tmp_path / "my_products"
    words = ["--base", "h100_sxm"]
    done = call("calibrate", "products", str(file), *words, "--out", str(folder))
    assert f"{3 * len(sizes)} products added" in done.stdout
    assert all(isinstance(record, GemmRecord) for record in read_records(folder)[1])
    fitted = tmp_path / "my_gpu.yaml"
    call("calibrate", "fit", str(folder), "--name", "my_gpu", *words, "-o", str(fitted))
    slower = DurationModel(load_profile(fitted))
    ratios = [
        base.seconds(Gemm(*size, layout="TN")) / slower.seconds(Gemm(*size, layout="TN"))
        for size in sizes
    ]
    assert sum(ratios) / len(ratios) == pytest.approx(0.8, rel=0.05)
    assert slower.profile.inter_node and base.profile.inter_node
    assert slower.profile.inter_node.adapter_bandwidth.value == (
        base.profile.inter_node.adapter_bandwidth.value
    )
