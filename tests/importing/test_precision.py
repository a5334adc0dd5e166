"""What Megatron-LM's arguments of data types become."""

from simtrain.importing import import_megatron
from tests.helpers.imported import BASE
from tests.helpers.mapped_arguments import DISTRIBUTED


def test_training_in_fp32_is_unfused() -> None:
    scenario, _ = import_megatron(BASE.replace("--bf16", ""))
    assert (scenario.precision.compute, scenario.precision.gradients) == ("fp32", "fp32")
    assert scenario.attention_backend == "unfused"


def test_states_that_go_through_fp32_copies_are_noted() -> None:
    states = "--use-precision-aware-optimizer --exp-avg-dtype fp16 --main-params-dtype fp16"
    scenario, text = import_megatron(f"{BASE} {DISTRIBUTED} {states}")
    assert not scenario.precision.narrow_states
    assert "# - --exp-avg-dtype fp16: states that go through fp32 copies" in text
    assert "# - --main-params-dtype fp16: main parameters that go through fp32 copies" in text
