"""Adapters (LoRA) and packed documents of Megatron-Bridge and NeMo."""

import pytest

from simtrain.errors import InputError
from simtrain.scenario.model import Lora
from tests.helpers.imported import bridge_draft, nemo_draft, written
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


def test_a_recipe_in_python_has_its_adapters() -> None:
    recipe = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _peft_common
from megatron.bridge.peft.lora import LoRA


def llama3_8b_peft_config():
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.seq_length = 4096
    cfg.peft = LoRA(dim=8, alpha=16, target_modules=["linear_qkv", "linear_proj"])
    return cfg
"""
    scenario, _ = bridge_draft(written("recipe.py", recipe), gpus=8).finished()
    assert scenario.model.lora == Lora(rank=8, modules=("linear_qkv", "linear_proj"))


def test_nemo_prints_the_same_class() -> None:
    recipe = """
_target_: nemo.collections.llm.finetune
model:
  _target_: nemo.collections.llm.LlamaModel
  config: {_target_: nemo.collections.llm.Llama3Config8B, seq_length: 4096}
trainer:
  devices: 8
  num_nodes: 1
  strategy: {_target_: x.MegatronStrategy, tensor_model_parallel_size: 2}
data: {global_batch_size: 8, micro_batch_size: 1, seq_length: 4096}
peft: {_target_: nemo.collections.llm.peft.lora.LoRA, dim: 8, alpha: 16}
"""
    scenario, _ = nemo_draft(written("recipe.yaml", recipe)).finished()
    assert scenario.model.lora == Lora(rank=8)


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
