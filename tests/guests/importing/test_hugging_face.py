"""`simtrain import`: a config.json becomes a commented scenario."""

import json
from pathlib import Path
from typing import Any

import pytest

from simtrain import models
from simtrain.errors import InputError
from simtrain.guests.importing.hugging_face.keys import FAMILIES, NOT_MODELLED, WITHOUT_EFFECT
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.model import LatentAttention
from tests.helpers.command_line import MACHINE, call
from tests.helpers.imported import import_hugging_face
from tests.helpers.toys import plan_of

SIZES = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "intermediate_size": 2816,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
}
GPT2 = {"n_embd": 1024, "n_layer": 12, "n_head": 16, "n_positions": 1024, "vocab_size": 50257}


def imported(config: dict[str, Any], *overrides: str) -> tuple[Scenario, str]:
    Path("config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return import_hugging_face("config.json", overrides)


def of(kind: str, **keys: Any) -> dict[str, Any]:
    """Return a small config of a model type."""
    sizes = GPT2 if kind == "gpt2" else SIZES
    if kind == "nemotron_h":
        keys = {"hybrid_override_pattern": "MM-*M-" * 2} | keys
    if kind == "deepseek_v2":
        keys = {"num_experts_per_tok": 6} | keys
    return {"model_type": kind} | sizes | keys


@pytest.mark.parametrize("kind", FAMILIES)
def test_loading_the_written_file_gives_the_scenario(kind: str) -> None:
    keys = {} if kind == "gpt2" else {"num_key_value_heads": 4, "torch_dtype": "float16"}
    length = "model.seq_length=2048"
    scenario, text = imported(of(kind, **keys), "batch.global=4", "parallelism.data=2", length)
    Path("o.yaml").write_text(text, encoding="utf-8")
    loaded = load_scenario("o.yaml")
    assert loaded.model_dump(exclude={"name"}) == scenario.model_dump(exclude={"name"})
    assert scenario.precision.compute == ("bf16" if kind == "gpt2" else "fp16")
    assert (scenario.batch.global_, scenario.parallelism.data) == (4, 2)


def test_every_key_is_in_exactly_one_list() -> None:
    for family in FAMILIES.values():
        lists = (family.mapped.keys(), NOT_MODELLED.keys(), WITHOUT_EFFECT)
        assert sum(map(len, lists)) == len(set().union(*lists))


def test_keys_that_are_not_modelled_are_noted() -> None:
    text = imported(of("llama", **dict.fromkeys(NOT_MODELLED, 8)))[1]
    assert all(f"# - {key} 8, line " in text for key in NOT_MODELLED)


def test_a_window_counts_only_if_sequences_are_longer() -> None:
    scenario, text = imported(of("mistral", sliding_window=512))
    assert scenario.model.attention_window == 512
    assert "# sliding_window, line 9" in text
    for window in (4096, None):
        assert imported(of("mistral", sliding_window=window))[0].model.attention_window is None
    unused = of("qwen2", sliding_window=512, use_sliding_window=False)
    assert imported(unused)[0].model.attention_window is None


SLIDING, FULL, LINEAR = (f"{kind}_attention" for kind in ("sliding", "full", "linear"))


@pytest.mark.parametrize(
    ("keys", "window", "every", "noted"),
    [
        ({"layer_types": [SLIDING, FULL]}, 512, 2, ""),
        ({"layer_types": [SLIDING, SLIDING]}, 512, None, ""),
        ({"layer_types": [FULL, FULL]}, None, None, ""),
        ({"layer_types": [FULL, SLIDING]}, 512, None, "full_attention in layer_types"),
        (
            {"layer_types": ["linear_attention", FULL]},
            None,
            None,
            "linear_attention in layer_types",
        ),
        ({"sliding_window_pattern": 2}, 512, 2, ""),
        ({"sliding_window_pattern": 6}, 512, None, ""),
    ],
)
def test_some_layers_have_no_window(
    keys: dict[str, Any], window: int | None, every: int | None, noted: str
) -> None:
    scenario, text = imported(of("mistral", sliding_window=512, num_hidden_layers=2, **keys))
    assert scenario.model.attention_window == window
    assert scenario.model.full_attention_every == every
    assert noted in text and (noted or "layer_types," not in text.split("model:")[0])


def test_the_router_of_deepseek_v3_has_the_defaults_of_transformers() -> None:
    found = imported(of("deepseek_v3"))[0].model.experts
    names = ("router_score", "router_bias", "router_groups", "router_group_top_k")
    for one in (found, models.deepseek_v3.experts):
        assert [getattr(one, name) for name in names] == ["sigmoid", True, 8, 4]
    other = imported(of("deepseek_v3", scoring_func="sqrtsoftplus"))[1]
    assert "# - scoring_func sqrtsoftplus: another score" in other


def test_a_layer_of_deepseek_v3_has_the_published_parameters_of_attention() -> None:
    sizes = {"hidden_size": 7168, "num_attention_heads": 128, "num_hidden_layers": 1}
    scenario = imported(
        of("deepseek_v3", num_nextn_predict_layers=1, n_routed_experts=None, **sizes)
    )[0]
    (stage,) = plan_of(scenario).stage_parameters
    mlp = 3 * 7168 * scenario.model.ffn_hidden_size
    assert stage.layers == 187_107_328 + mlp + 2 * 7168
    assert scenario.model.mtp_num_layers == 1
    plain = imported(of("deepseek_v2", q_lora_rank=None, v_head_dim=64))[0].model
    assert plain.latent_attention == LatentAttention(kv_lora_rank=512, v_head_dim=64)


@pytest.mark.ci
def test_the_command_asks_for_what_a_config_does_not_say() -> None:
    config = json.dumps(of("llama", max_position_embeddings=1 << 17))
    Path("config.json").write_text(config, encoding="utf-8")
    words = call("import", "config.json", *MACHINE, "-o", "x.yaml").stdout
    _, _, command = words.strip().partition("Run it with: simtrain ")
    assert command.startswith("search x.yaml --gpus 8 --set model.seq_length=8192 ")
    assert call(*command.split()).exit_code == 0
    words = call("import", "config.json", "--gpus", "4", *MACHINE, "-o", "y.yaml").stdout
    assert "Run it with: simtrain search y.yaml --gpus 4 --set model.seq_length=8192" in words


VARIANTS = {
    "biases": of("llama", attention_bias=True, mlp_bias=True),
    "parallel": of("cohere", num_key_value_heads=8),
    "inner": of("gpt2", n_inner=2048),
    "dropout": of("gpt2", resid_pdrop=0, attn_pdrop=0.25),
}
WRONG = {
    "another model": of("opt", alibi=True),
    "a model of images without its text model": {"model_type": "llama4"},
    "no type": SIZES,
    "an unknown key": of("llama", hidden_sise=3),
    "an unknown activation": of("llama", hidden_act="tanh"),
    "text as a dropout": of("gpt2", resid_pdrop="x"),
    "a missing key": {key: value for key, value in of("llama").items() if key != "hidden_size"},
    "text as a number": of("llama", num_hidden_layers="12"),
}


def test_the_vocabulary_is_padded_for_the_tensor_parallelism_that_is_set() -> None:
    scenario, text = imported(of("gpt2"), "parallelism.tensor=8")
    assert scenario.model.vocab_size == 51200
    assert "# --set\n" in text
    with pytest.raises(InputError, match="E301"):
        imported(of("gpt2"), "parallelism.tensor=3")
