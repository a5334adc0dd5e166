"""Imports of Megatron-LM's arguments of data types."""

import pytest

from simtrain.errors import InputError
from simtrain.importing.megatron.export import megatron_script
from tests.helpers.imported import BASE, import_megatron
from tests.helpers.mapped_arguments import DISTRIBUTED


def test_training_in_fp32_is_unfused() -> None:
    scenario, _ = import_megatron(BASE.replace("--bf16", ""))
    assert (scenario.precision.compute, scenario.precision.gradients) == ("fp32", "fp32")
    assert scenario.attention_backend == "unfused"


def test_states_that_go_through_fp32_copies_are_noted() -> None:
    states = "--use-precision-aware-optimizer --exp-avg-dtype fp16 --main-params-dtype fp16"
    scenario, text = import_megatron(f"{BASE} {DISTRIBUTED} {states}")
    assert not scenario.precision.narrow_states
    assert "# - --exp-avg-dtype fp16: narrower optimizer states" in text
    assert "# - --main-params-dtype fp16: narrower main parameters" in text


FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
FP8 = "--fp8-format e4m3 --fp8-param-gather --fp8-recipe"


def test_weights_that_megatron_fsdp_gathers_in_fp8() -> None:
    base = f"{BASE} --world-size 16"
    scenario, text = import_megatron(f"{base} {FSDP} {FP8} blockwise")
    assert (scenario.memory.zero_stage, scenario.precision.fp8_parameters) == (3, True)
    assert "--fp8-param-gather: weights" not in text
    scenario, text = import_megatron(f"{base} --use-torch-fsdp2 {FP8} blockwise")
    assert (scenario.memory.zero_stage, scenario.keeps_fp8_parameters) == (3, False)
    assert "# - --fp8-param-gather: weights gathered and kept in fp8: fewer bytes" in text


def test_mxfp8_needs_blackwell_and_keeps_weights() -> None:
    scenario, _ = import_megatron(f"{BASE} {DISTRIBUTED} {FP8} mxfp8")
    assert (scenario.precision.fp8_recipe, scenario.cluster) == ("mxfp8", "b200_sxm")
    assert scenario.precision.fp8_parameters


FP4 = f"{BASE} --fp4-format e2m1 --num-layers 8"


def test_fp4_is_nvfp4_on_blackwell_with_some_layers_in_bf16() -> None:
    ends = "--first-last-layers-bf16 --num-layers-at-end-in-bf16 4"
    scenario, text = import_megatron(f"{FP4} --fp4-recipe nvfp4 {ends} --fp4-param-gather")
    precision = scenario.precision
    assert (precision.compute, scenario.cluster) == ("fp4", "b200_sxm")
    assert (precision.first_layers_bf16, precision.last_layers_bf16) == (1, 4)
    assert "# - --fp4-param-gather: weights gathered and kept in fp4: fewer bytes" in text
    script = megatron_script(scenario)
    for words in ("--fp4-format e2m1", "--first-last-layers-bf16", "--num-layers-at-end-in-bf16 4"):
        assert words in script


def test_layers_stay_in_bf16_only_if_the_flag_says_so() -> None:
    precision = import_megatron(f"{FP4} --num-layers-at-end-in-bf16 4")[0].precision
    assert (precision.first_layers_bf16, precision.last_layers_bf16) == (0, 0)


def test_a_custom_recipe_of_fp4_is_refused() -> None:
    with pytest.raises(InputError, match="must be one of nvfp4"):
        import_megatron(f"{FP4} --fp4-recipe custom")
