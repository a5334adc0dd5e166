"""Adapters (LoRA) and packed documents of Megatron-Bridge."""

import pytest

from simtrain.errors import InputError
from simtrain.scenario.model import Lora
from tests.helpers.imported import bridge_draft, written
from tests.importing.test_bridge import EVEN

PEFT = "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n"


def lora_of(peft: str, config: str = EVEN) -> Lora | None:
    draft = bridge_draft(written("config.yaml", config + peft), gpus=64)
    return draft.finished()[0].model.lora


def test_a_printed_config_has_its_adapters() -> None:
    lines = "  alpha: 32\n  dim: 16\n  dropout: 0.1\n  target_modules:\n  - linear_qkv\n"
    expected = Lora(rank=16, modules=("linear_qkv",), dropout=0.1)
    assert lora_of(f"{PEFT}{lines}") == expected


@pytest.mark.parametrize(
    ("peft", "modules"),
    [
        (PEFT, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")),
        (
            PEFT.replace("lora.LoRA", "canonical_lora.CanonicalLoRA"),
            (
                "linear_proj",
                "linear_fc2",
                "linear_q",
                "linear_k",
                "linear_v",
                "linear_fc1_gate",
                "linear_fc1_up",
            ),
        ),
    ],
)
def test_defaults_are_those_of_the_classes(peft: str, modules: tuple[str, ...]) -> None:
    lora = lora_of(peft)
    assert lora
    assert (lora.rank, lora.dropout, lora.modules) == (32, 0, modules)


@pytest.mark.parametrize(
    ("peft", "excerpt"),
    [
        (PEFT.replace("lora.LoRA", "dora.DoRA"), "peft is DoRA"),
        (f"{PEFT}  target_modules: ['*.layers.0.*.linear_qkv']\n", "target_modules has"),
        (f"{PEFT}  dim: many\n", "is not a number"),
    ],
)
def test_other_adapters_are_refused(peft: str, excerpt: str) -> None:
    with pytest.raises(InputError, match=excerpt):
        lora_of(peft)


def test_packed_documents_are_noted_unless_their_lengths_are_given() -> None:
    data = "dataset:\n  offline_packing_specs:\n    packed_sequence_size: 8192\n"
    file = written("config.yaml", EVEN + data)
    (note,) = (x for x in bridge_draft(file, gpus=64).notes if "packed_sequence_size" in x)
    assert "batch.packed_lengths=[512]" in note
    draft = bridge_draft(file, ["batch.packed_lengths=[512]"], gpus=64)
    assert not [x for x in draft.notes if "packed_sequence_size" in x]
    assert draft.finished()[0].documents == ((512, 16),)


def test_a_model_with_experts_is_imported_without_adapters_and_a_note() -> None:
    experts = EVEN.replace("num_moe_experts: null", "num_moe_experts: 8\n  moe_router_topk: 2")
    draft = bridge_draft(written("config.yaml", experts + PEFT), gpus=64)
    assert draft.finished()[0].model.lora is None
    assert any("only adapters are trained" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("precision", "recipe", "keeps"),
    [
        ("bf16_with_fp8_current_scaling_mixed", "tensorwise", True),
        ("bf16_with_mxfp8_mixed", "mxfp8", True),
        ("bf16_with_fp8_subchannel_scaling_mixed", "blockwise", False),
    ],
)
def test_frozen_weights_are_held_as_the_recipe_says(
    precision: str, recipe: str, keeps: bool
) -> None:
    start = EVEN.index("mixed_precision:\n")
    end = EVEN.index("model:\n", start)
    config = f"{EVEN[:start]}mixed_precision: {precision}\n{EVEN[end:]}{PEFT}"
    draft = bridge_draft(written("config.yaml", config), gpus=64)
    scenario, text = draft.finished()
    assert scenario.precision.fp8_recipe == recipe
    assert scenario.precision.fp8_parameters is keeps
    assert f"fp8_parameters: {str(keeps).lower()}" in text
    assert not [note for note in draft.notes if "gathered and kept in fp8" in note]
