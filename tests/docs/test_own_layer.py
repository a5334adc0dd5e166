"""The layer of docs/extend.md, compared with counts by hand."""

import re
import types
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simtrain
from simtrain.errors import InputError
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.workload import blocks
from simtrain.workload.ops import total_flops
from simtrain.workload.passes import record_pass
from simtrain.workload.tape import Block
from tests.helpers.command_line import ROOT
from tests.helpers.toys import a100, scenario_with

TEXT = (ROOT / "docs/extend.md").read_text(encoding="utf-8")
HEADS, HEAD_SIZE, FFN = 8, 16, 320


def snippet(marker: str) -> str:
    (code,) = re.findall(rf"<!-- {marker} -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    return str(code)


def layer_class() -> Any:
    namespace: dict[str, Any] = {"__name__": "own_layer"}
    exec(snippet("own layer"), namespace)
    return namespace["ParallelLayer"]


LAYER: Block = layer_class()(hidden=HEADS * HEAD_SIZE, heads=HEADS, ffn=FFN)


def scenario(**sections: Any) -> Scenario:
    model = {
        "num_layers": 8,
        "hidden_size": HEADS * HEAD_SIZE,
        "num_attention_heads": HEADS,
        "seq_length": 64,
        "vocab_size": 1024,
    }
    return scenario_with(model, **({"batch": {"micro": 2, "global": 16}} | sections))


def plan(**sections: Any) -> Plan:
    return Plan.of(scenario(**sections), 8, layers=[LAYER] * 8)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (LAYER, "layers is a ParallelLayer, not a list"),
        ([type(LAYER)] * 8, r"layers\[0\] is a class"),
        ([LAYER, None], r"layers\[1\] is a NoneType without is_unit and forward"),
        ([], r"layers has 0 layers, but model.num_layers is 8\n  fix: pass 8 layers$"),
    ],
)
def test_values_that_are_not_a_list_of_layers_are_refused(layers: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"E505 {message}"):
        Plan.of(scenario(), 8, layers=layers)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda tape, x: None, "returns nothing"),
        (lambda tape, x: 3, "returns an object of type int"),
        (
            lambda tape, x: blocks.column_linear(tape, x, 256, "wide"),
            "returns a tensor of 128 x 256",
        ),
    ],
)
def test_a_layer_that_returns_no_hidden_states_is_refused(returned: Any, message: str) -> None:
    layer = types.SimpleNamespace(is_unit=True, forward=returned)
    with pytest.raises(InputError, match="without a hash; write @dataclass"):
        Plan.of(scenario(), 8, layers=[layer] * 8)
    layer = type("Layer", (), {"is_unit": True, "forward": staticmethod(returned)})()
    with pytest.raises(InputError, match=rf"forward of layers\[0\] {message}"):
        Plan.of(scenario(), 8, layers=[layer] * 8)


def test_the_documented_snippets_run(capsys: pytest.CaptureFixture[str]) -> None:
    exec(snippet("own layer") + snippet("own layer, simulated"), {"__name__": "own_layer"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["none", "selective", "full"]


GRIDS = st.sampled_from([(1, False), (2, False), (4, True), (8, True)])


@given(GRIDS)
def test_flops_by_hand(grid: tuple[int, bool]) -> None:
    """Forward 2 sb (h (3h + 2f) + (h + f) h) / t + 4 s²bh / t; backward twice that."""
    t, sequence = grid
    one = plan(parallelism={"tensor": t, "sequence_parallel": sequence})
    s, b, h = 64, 2, HEADS * HEAD_SIZE
    products = 2 * s * b * (h * (3 * h + 2 * FFN) + (h + FFN) * h)
    expected = Fraction(products + 4 * s**2 * b * h, t)
    assert total_flops(record_pass(one.layers_pass(1, "F")).ops) == expected
    assert total_flops(record_pass(one.layers_pass(1, "B")).ops) == 2 * expected


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@given(grid=GRIDS)
def test_saved_bytes_by_hand(grid: tuple[int, bool], recompute: str) -> None:
    """Saved: the norm's input and output, Q, K and V, the softmax, both gates, the input of the
    last product.

    Selective recompute drops the softmax (no dropout follows it), full recompute all but the norm's
    input.
    """
    t, sequence = grid
    one = plan(parallelism={"tensor": t, "sequence_parallel": sequence}, recompute=recompute)
    s, b, h = 64, 2, HEADS * HEAD_SIZE
    inputs = Fraction(2 * s * b * h, t if sequence else 1)
    scores = Fraction(2 * HEADS * s**2 * b, t)
    others = Fraction(2 * s * b * (3 * h + 2 * FFN + h + FFN), t)
    expected = {
        "none": 2 * inputs + others + scores,
        "selective": 2 * inputs + others,
        "full": inputs,
    }
    assert pass_memory(one.layers_pass(3, "F")).remaining_bytes == 3 * expected[recompute]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "sections",
    [
        {"parallelism": {"pipeline": 4, "interleave": 2}},
        {"parallelism": {"data": 2}, "memory": {"zero_stage": 3}},
    ],
    ids=str,
)
def test_it_runs_in_pipelines_and_shards(sections: dict[str, Any], recompute: str) -> None:
    one = scenario(**sections, recompute=recompute)
    result = simtrain.run(one, a100(), layers=[LAYER] * 8)
    assert (result.hardware_flops > result.model_flops) == (recompute != "none")
    assert result.breakdown.total_s == pytest.approx(result.iteration_time_s)


def test_another_number_of_layers_is_refused() -> None:
    with pytest.raises(InputError, match=r"layers has 3 layers, but model.num_layers is 8"):
        simtrain.run(scenario(), a100(), layers=[LAYER] * 3)
