"""Norms that read an fp32 copy of their input and run again (InternEvo), counted by hand."""

from typing import Any

from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, Phase
from simtrain.workload.record import record_pass
from simtrain.workload.work import Elementwise
from tests.helpers.toys import plan_of, scenario_with

S, B, H = 24, 2, 32
SIZE, WIDE = 2 * S * B * H, 4 * S * B * H
"""Bytes of the hidden states in bf16 and in fp32."""
GPT = {"num_layers": 1, "hidden_size": H, "num_attention_heads": 4, "seq_length": S}
NAMES = [f"{part} layer norm{step}" for part in ("attention", "MLP") for step in (" to fp32", "")]


def with_norms(*, checkpointed: bool, **sections: Any) -> Scenario:
    """Return a layer whose norms are checkpointed or not."""
    software = {"checkpointed_fp32_norms": checkpointed}
    return scenario_with(GPT, batch={"micro": B, "global": B}, software=software, **sections)


def layer_ops(scenario: Scenario, kind: Any) -> dict[tuple[str, Phase], Op]:
    """Return the ops of a pass of a layer, each of which has a name of its own in its phase."""
    ops = [*record_pass(plan_of(scenario).layers_pass(1, kind)).ops]
    found = {(op.name, op.phase): op for op in ops}
    assert len(found) == len(ops)
    return found


def moved(op: Op) -> tuple[int, int]:
    """Return the bytes that a memory-bound op reads and writes."""
    assert isinstance(op.work, Elementwise)
    return op.work.read_bytes, op.work.write_bytes


def test_both_norms_of_a_layer_cast_and_run_again() -> None:
    """A norm's gradient reads that of its output in bf16 and the copy, and writes one in fp32."""
    scenario = with_norms(checkpointed=True)
    there, back = layer_ops(scenario, "F"), layer_ops(scenario, "B")
    for cast, norm in (NAMES[:2], NAMES[2:]):
        for phase, ops in ((Phase.FORWARD, there), (Phase.RECOMPUTE, back)):
            assert moved(ops[cast, phase]) == (SIZE, WIDE)
            assert moved(ops[norm, phase]) == (WIDE, SIZE)
        gradient = back[f"{norm} gradient", Phase.INPUT_GRADIENT]
        assert moved(gradient) == (SIZE + WIDE, WIDE)
        from_fp32 = back[f"{norm} from fp32 gradient", Phase.INPUT_GRADIENT]
        assert moved(from_fp32) == (WIDE, SIZE)
    again = [name for name, phase in back if phase is Phase.RECOMPUTE]
    assert sorted(again) == sorted(NAMES)


def test_checkpointed_norms_save_what_fused_ones_save() -> None:
    """The input in bf16: the copy is made again."""
    kept = [
        pass_memory(plan_of(with_norms(checkpointed=flag)).layers_pass(1, "F")).remaining_bytes
        for flag in (False, True)
    ]
    assert kept[0] == kept[1]
    back = plan_of(with_norms(checkpointed=True)).layers_pass(1, "B")
    assert pass_memory(back).remaining_bytes == 0
