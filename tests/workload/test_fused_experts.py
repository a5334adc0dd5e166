"""Transformer Engine's fused MLP of experts: what its epilogues move and save, by hand."""

from typing import Any

from simtrain.scenario import Scenario
from simtrain.workload.work import Elementwise, GroupedGemm
from tests.helpers.expert_models import layer
from tests.workload.test_fp8_experts import EXPERTS, OWN, PADDING, RANKS, ROWS, F, H, experts_in

MXFP8 = {"compute": "fp8", "fp8_recipe": "mxfp8"}
PADDED = ROWS + PADDING["mxfp8"]
"""Rows of a rank's experts, with padding to multiples of 32."""


def with_software(**software: Any) -> Scenario:
    """Return a layer with experts with SwiGLU in mxfp8 on B200s."""
    stack = {"stack": "megatron_core"} | software
    gated = {"activation": "swiglu"}
    return experts_in(MXFP8, model=gated, cluster="b200_sxm", software=stack)


def fp8_bytes(elements: int) -> int:
    """Bytes of a copy with a scale of one byte for each 32 numbers."""
    return elements + elements // 32


def works(scenario: Scenario, kind: str) -> dict[str, Any]:
    return {op.name: op.work for op in layer(scenario, kind)}


def test_epilogues_run_the_activation_and_its_casts() -> None:
    assert (EXPERTS // RANKS, OWN) == (2, 2)
    plain, fused = with_software(), with_software(fused_grouped_mlp=True)
    gone = {
        "F": {"experts SwiGLU", "experts down input to fp8"},
        "B": {"experts SwiGLU gradient", "experts up gradient to fp8"},
    }
    for kind, names in gone.items():
        assert {*works(plain, kind)} - {*works(fused, kind)} == names
        assert {*works(fused, kind)} <= {*works(plain, kind)}


def test_epilogues_move_the_bytes_of_what_they_run() -> None:
    """The first product writes both copies of the activation. The input gradient of the second
    reads the input of the activation in bf16 and writes both copies of its gradient, in place of
    the gradient of the activation in bf16.
    """
    fused = with_software(fused_grouped_mlp=True)
    there, back = works(fused, "F"), works(fused, "B")
    assert there["experts up"].epilogue_bytes == 2 * fp8_bytes(PADDED * F)
    assert there["experts down"].epilogue_bytes == 0
    read, written = 2 * PADDED * 2 * F, 2 * fp8_bytes(PADDED * 2 * F)
    assert back["experts down input gradient"].epilogue_bytes == read + written - 2 * PADDED * F
    assert back["experts up input gradient"].epilogue_bytes == 0
    product = there["experts up"]
    assert isinstance(product, GroupedGemm)
    plain = works(with_software(), "F")["experts up"].product
    more = product.product.moved_bytes - plain.moved_bytes
    assert more == product.epilogue_bytes // OWN


def test_a_stash_copies_what_experts_save() -> None:
    """Their input and the activation by columns, its input in bf16, and an fp32 probability."""
    stashed = with_software(fused_grouped_mlp=True, paged_stash=True)
    saved = fp8_bytes(PADDED * H) + fp8_bytes(PADDED * F) + 2 * PADDED * 2 * F
    for kind, name in (("F", "experts stash"), ("B", "experts stash gradient")):
        work = works(stashed, kind)[name]
        assert isinstance(work, Elementwise)
        assert work.read_bytes == work.write_bytes
        assert 2 * PADDED <= work.read_bytes - saved <= 4 * PADDED
