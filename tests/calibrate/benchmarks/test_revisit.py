"""Records that a fit would doubt are measured again; ranks stop if torchrun ends."""

from pathlib import Path

import pytest

from calibrate.benchmarks import measure as measuring
from calibrate.benchmarks.measure import header
from calibrate.benchmarks.ranks import Ranks
from calibrate.benchmarks.sizes import BenchmarkPart
from calibrate.records import schema
from calibrate.records.file import MeasurementPoint, RecordFile, identity, read_records
from calibrate.records.schema import FILE_NAME, KernelRecord, Measurement, Timing, doubtful
from tests.helpers.measure_tiny import TINY

pytestmark = pytest.mark.slow


def kernel(num_bytes: int, median_s: float, spread_s: float = 0.0) -> KernelRecord:
    time = Timing(median_s=median_s, spread_s=spread_s, num_samples=5)
    return KernelRecord(name="copy", family="stream", num_bytes=num_bytes, time=time)


SMALL, LARGE, OTHER = kernel(1 << 10, 1e-3), kernel(1 << 12, 2e-3), kernel(1 << 14, 8e-3)
SLOW = kernel(1 << 10, 5e-3)
NOISY = kernel(1 << 14, 8e-3, 9e-3)


def test_noisy_and_contradicting_records_are_doubtful() -> None:
    assert doubtful([SMALL, LARGE, OTHER]) == []
    assert doubtful([SLOW, LARGE, OTHER]) == [SLOW, LARGE]
    assert doubtful([SMALL, LARGE, NOISY]) == [NOISY]
    # Four times the bytes in less than half of the time, beyond both spreads, is no noise.
    limit = kernel(1 << 10, 4e-3 + 1e-3, 1e-3)
    assert doubtful([limit, LARGE]) == []
    for other in (kernel(1 << 12, 2e-3 - 1e-6), kernel(1 << 12, 1e-3, 0.9e-3)):
        assert doubtful([limit, other]) == [limit, other]
    for other in (kernel((1 << 12) - 1, 1e-6), kernel(1 << 12, 1e-3, 1e-3)):
        assert doubtful([limit, other]) == []


def test_works_and_their_names_by_hand() -> None:
    product = schema.GemmRecord(m=2, n=3, k=5, batch=7, time=SMALL.time)
    gather = schema.CollectiveRecord(op="all_gather", array_bytes=8, num_ranks=4, time=SMALL.time)
    works = product, SMALL, gather, schema.HostRecord(what="adam", num_bytes=9, time=SMALL.time)
    assert [schema.work_of(each) for each in works] == [2 * 7 * 2 * 3 * 5, 1024, 8, 9]
    assert [schema.rate_of(each) * 1e-3 for each in works] == [420, 1024, 8, 9]
    names = "7 of 2 × 3 × 5 TN bf16, copy of 1024 bytes, all_gather over 4 ranks, 8 bytes"
    assert ", ".join(map(schema.name_of, works[:3])) == names
    assert identity(product) == identity(product.model_copy(update={"time": LARGE.time}))
    assert len({identity(each) for each in works}) == 4


def test_replacing_a_record_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, header("cpu", Ranks()))
    for record in (SLOW, LARGE, OTHER):
        file.write(record)
    before = (tmp_path / FILE_NAME).read_bytes().partition(b"\n")[0]
    file.write(SMALL)
    assert file.records == read_records(tmp_path)[1] == [SMALL, LARGE, OTHER]
    assert (tmp_path / FILE_NAME).read_bytes().partition(b"\n")[0] == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def point_with(answers: list[KernelRecord]) -> MeasurementPoint:
    """Return a point whose visits give these results, one after another."""
    results = iter(answers)
    what = answers[0].model_dump(exclude={"kind", "time"})
    return MeasurementPoint(KernelRecord, what, lambda: {"time": next(results).time})


def measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: list[KernelRecord]
) -> list[Measurement]:
    points = [point_with(each) for each in answers]
    monkeypatch.setitem(measuring._PARTS, BenchmarkPart.KERNELS, [lambda sizes, timer: points])
    measuring.measure(folder, "cpu", TINY, [BenchmarkPart.KERNELS], dtype="bf16")
    return read_records(folder)[1]


def test_doubtful_records_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two measurements of the smallest kernel are slow, and contradict LARGE: both are
    measured three times. OTHER is never doubtful, and is measured once.
    """
    found = measured(tmp_path, monkeypatch, [SLOW, SLOW, SMALL], [LARGE] * 3, [OTHER])
    assert found == [SMALL, LARGE, OTHER]
