"""A resource to buy is added with an entry of `RESOURCES`, nothing else."""

import json
import pathlib

import pytest

from tests.helpers.checkout import Checkout

pytestmark = [pytest.mark.slow, pytest.mark.ci]

ENTRY = """\
    "gpu_clock": Resource(
        "clock of the GPU",
        "rates of products in bf16, and kernel latencies",
        rates=("gpu.peak_flops", "gemm.mainloop_flops", "gemm.sustained_flops"),
        times=("memory_bound.kernel_latency",),
        amount=_compute,
    ),
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project with one more resource."""
    copy = Checkout.copy(tmp_path_factory.mktemp("checkout"))
    registry = "simtrain/hardware/upgrades.py"
    copy.replace(
        registry, '    "memory_bandwidth": Resource(', f'{ENTRY}    "memory_bandwidth": Resource('
    )
    return copy


def test_compare_lists_a_new_resource(checkout: Checkout) -> None:
    assert "clock of the GPU" in checkout.call("compare", "gpt2_1_5b")
    data = checkout.call("compare", "gpt2_1_5b", "--json")
    saved = json.loads(data)["scenarios"][0]["with_more"]["saved"]
    assert saved["gpu_clock"] >= max(saved["tensor_cores"], saved["kernel_latencies"]) > 0


def test_reports_have_a_curve_of_a_new_resource(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "report.html"
    checkout.call("report", "gpt2_1_5b", "--out", str(page))
    assert "clock of the GPU" in page.read_text("utf-8")


def test_documents_list_a_new_resource(checkout: Checkout) -> None:
    code = "from docs.update.lists import resources; print(resources(None))"
    assert "clock of the GPU" in checkout.spawn("-c", code).stdout
