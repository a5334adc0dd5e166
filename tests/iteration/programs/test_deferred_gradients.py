"""Deferred weight gradients of the output layer: work, order, and what the last stage holds."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.iteration.memory.working import MemoryReplay
from simtrain.iteration.programs.parts import PassPart
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.schedules import KINDS
from simtrain.studies.simulation import simulate
from simtrain.workload.record import record_pass
from tests.helpers.toys import plan_of, scenario_with

H, VOCAB, TOKENS, MICROBATCHES = 256, 4096, 2 * 128, 6
MODEL: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": H,
    "num_attention_heads": 4,
    "seq_length": 128,
    "vocab_size": VOCAB,
    "tied_embeddings": False,
}
WEIGHT_GRADIENT = "logits weight gradient"


def deferring(number: int, **sections: Any) -> Scenario:
    """Return a GPT on four stages, two sequences a microbatch; `split` adds to parallelism."""
    split = {"pipeline": 4} | sections.pop("split", {})
    batch = {"micro": 2, "global": 2 * MICROBATCHES * split.get("data", 1)}
    overlap = {"deferred_output_gradients": number} | sections.pop("overlap", {})
    common = {"parallelism": split, "batch": batch, "overlap": overlap, "cluster": "h100_sxm"}
    return scenario_with(MODEL, **common | {"software": "megatron_core"} | sections)


def products(result: Result) -> Counter[str]:
    """Count the parts of the last stage that run the weight gradient of the output layer."""
    seconds, counts = result.iteration.seconds, Counter[str]()
    tasks = result.iteration.tasks
    for part, number in zip(tasks.parts, tasks.num_parts[-1].tolist(), strict=True):
        if isinstance(part, PassPart) and number and not part.span:
            ops = [op.name for op in record_pass(seconds.pass_of(part)).ops]  # type: ignore[arg-type]
            counts[part.kind] += number * ops.count(WEIGHT_GRADIENT)
    return counts


@pytest.mark.parametrize(("number", "at_the_end"), [(0, 0), (1, 1), (4, 4), (6, 6), (50, 6)])
def test_each_weight_gradient_runs_once(number: int, at_the_end: int) -> None:
    result = simulate(deferring(number))
    assert products(result) == Counter({"B": MICROBATCHES - at_the_end, "D": at_the_end})
    assert result.model_flops == simulate(deferring(0)).model_flops


def test_products_hide_while_other_stages_run_their_last_passes() -> None:
    """The last stage, with the logits, is the slowest: it ends its passes earlier, and the products
    run while the gradients of its last microbatch travel back through the other stages.
    """
    times_s = [simulate(deferring(number)).iteration_time_s for number in (0, 1, 2)]
    assert times_s[0] > times_s[1] > times_s[2]


@given(st.integers(0, 9), st.sampled_from([1, 2]), st.booleans())
def test_the_last_stage_holds_the_gradient_of_the_logits_and_their_input(
    number: int, t: int, sequence: bool
) -> None:
    """Per deferred microbatch 2 bytes for each logit of the rank, and of the layer's input."""
    split = {"tensor": t, "sequence_parallel": sequence and t > 1}
    scenario = deferring(number, split=split)
    with_them = MemoryReplay.of(plan_of(scenario))
    without = MemoryReplay.of(plan_of(deferring(0, split=split)))
    actions = with_them.pass_order.actions
    *_, first, end = actions.rank_starts.tolist()
    inputs = TOKENS * H // (t if split["sequence_parallel"] else 1)
    each = 2 * (TOKENS * VOCAB // t + inputs)
    held = (with_them.after_bytes - without.after_bytes)[first:end]
    backward = actions.kind[first:end] == KINDS.index("B")
    expected = each * np.minimum(np.cumsum(backward), min(number, MICROBATCHES))
    assert held[:-1].tolist() == expected[:-1].tolist()
    assert held[-1] == 0
    others = slice(0, first)
    assert np.array_equal(with_them.after_bytes[others], without.after_bytes[others])
