"""The layer of docs/extend.md, compared with counts by hand."""

import re
import types
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simtrain
from simtrain.durations.collectives import total_wire_bytes
from simtrain.errors import InputError
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.workload import blocks
from simtrain.workload.ops import Phase, total_flops
from simtrain.workload.record import record_pass
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


def test_columns_that_ranks_cannot_share_equally_are_refused() -> None:
    def forward(tape: Any, x: Any) -> Any:
        return blocks.column_linear(tape, x, 257, "wide")

    layer = type("Layer", (), {"is_unit": True, "forward": staticmethod(forward)})()
    message = r"E507 wide has 257 outputs, which 2 .*\n.*\n  fix: write .*, such as 258"
    with pytest.raises(InputError, match=message):
        Plan.of(scenario(parallelism={"tensor": 2}), 8, layers=[layer] * 8)


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


@given(GRIDS)
def test_parameters_by_hand(grid: tuple[int, bool]) -> None:
    """(h (3h + 2f) + (h + f) h) / t weights, and the norm's h on every rank."""
    t, sequence = grid
    (stage,) = plan(parallelism={"tensor": t, "sequence_parallel": sequence}).stage_parameters
    h = HEADS * HEAD_SIZE
    weights = (h * (3 * h + 2 * FFN) + (h + FFN) * h) // t
    assert stage.layers == 8 * (weights + h)
    assert stage.partial_sums == 8 * h + 2 * h  # and the final layer norm


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


@given(GRIDS)
def test_communication_by_hand(grid: tuple[int, bool]) -> None:
    """The layer communicates like one of the two blocks of GPT's layer: half of Table 2."""
    t, sequence = grid
    one = plan(parallelism={"tensor": t, "sequence_parallel": sequence})
    ops = [op for kind in ("F", "B") for op in record_pass(one.layers_pass(1, kind)).ops]
    sbh = 64 * 2 * HEADS * HEAD_SIZE
    assert total_wire_bytes(ops, include_extra=False) == 8 * Fraction(t - 1, t) * sbh


def test_gradients_that_meet_are_summed_once() -> None:
    """Only the layer's input is used twice: by the norm and by the residual."""
    ops = record_pass(plan().layers_pass(1, "B")).ops
    assert [op.name for op in ops if "residual sum" in op.name] == ["norm residual sum"]


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


def test_layers_may_differ() -> None:
    """Time and memory of a model with one wide layer are between those of all-narrow and all-wide
    models.
    """
    wide = layer_class()(hidden=HEADS * HEAD_SIZE, heads=HEADS, ffn=4 * FFN)
    models = [LAYER] * 8, [LAYER] * 5 + [wide] + [LAYER] * 2, [wide] * 8
    found = [
        simtrain.run(scenario(parallelism={"pipeline": 4}), a100(), layers=layers)
        for layers in models
    ]
    times = [result.iteration_time_s for result in found]
    assert times == sorted(times) and len(set(times)) == 3
    peaks = [result.memory.peaks_bytes for result in found]
    # Layers 5 and 6 are on stage 2.
    assert [few == some for few, some in zip(peaks[0], peaks[1], strict=True)] == [1, 1, 0, 1]


def test_another_number_of_layers_is_refused() -> None:
    with pytest.raises(InputError, match=r"layers has 3 layers, but model.num_layers is 8"):
        simtrain.run(scenario(), a100(), layers=[LAYER] * 3)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_halves_of_the_backward_pass_do_its_work_once(recompute: str) -> None:
    """I and W issue each op of B once: weight gradients in W, all others in I."""
    one = plan(recompute=recompute, parallelism={"tensor": 4, "sequence_parallel": True})
    whole, inputs, weights = (
        [(op.name, op.work) for op in record_pass(one.layers_pass(2, kind)).ops]
        for kind in ("B", "I", "W")
    )
    assert sorted(map(str, inputs + weights)) == sorted(map(str, whole))
    phases = {op.phase for op in record_pass(one.layers_pass(2, "W")).ops}
    assert phases == {Phase.WEIGHT_GRADIENT}
