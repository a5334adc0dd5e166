"""Modules of Megatron-LM's --recompute-modules are mapped, omitted with a note, or refused."""

import pytest

from simtrain.errors import InputError
from tests.helpers.imported import import_megatron
from tests.helpers.mapped_arguments import EXPERTS

BASE = """python pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16
 --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --vocab-size 51200
 --recompute-granularity selective """.replace("\n", " ")
LATENT = "--multi-latent-attention --kv-lora-rank 512 --position-embedding-type rope --bf16"
LATENT += " --disable-bias-linear"
SHARED = "--moe-shared-expert-intermediate-size 512"


@pytest.mark.parametrize(
    ("arguments", "modules", "left_out"),
    [
        ("", "core_attention", ""),
        ("--recompute-modules core_attn mlp", "core_attention mlp", ""),
        ("--recompute-modules mlp layernorm moe", "mlp", "layernorm, moe"),
        ("--transformer-impl local --recompute-modules layernorm", "layernorm", ""),
        (f"{EXPERTS} --recompute-modules mlp layernorm moe_act", "layernorm moe_act", "mlp"),
        (f"{EXPERTS} --moe-layer-recompute", "core_attention moe", ""),
        (f"{EXPERTS} --moe-layer-recompute --recompute-modules moe_act", "moe moe_act", ""),
        (f"{EXPERTS} --recompute-modules core_attn shared_experts moe", "core_attention moe", "sh"),
        (f"{EXPERTS} {SHARED} --recompute-modules shared_experts", "shared_experts", ""),
        (
            f"{LATENT} --recompute-modules layernorm mla_up_proj mlp",
            "layernorm mla_up_proj mlp",
            "",
        ),
    ],
)
def test_modules_are_mapped(arguments: str, modules: str, left_out: str) -> None:
    scenario, text = import_megatron(BASE + arguments)
    assert scenario.recompute.strategy == "selective"
    assert scenario.recompute.modules == tuple(modules.split())
    assert f": not {left_out}" in text if left_out else "which no layer has" not in text


def test_norms_are_separate_modules_without_transformer_engine() -> None:
    arguments = BASE + "--recompute-modules mlp"
    scenario, _ = import_megatron(f"{arguments} --transformer-impl local")
    assert scenario.software.norm_in_linear is False
    assert import_megatron(arguments)[0].facts.kernels.norm_in_linear


def test_without_a_module_that_applies_nothing_is_recomputed() -> None:
    scenario, text = import_megatron(BASE + "--recompute-modules layernorm")
    assert scenario.recompute.strategy == "none"
    assert "none of these modules is recomputed" in text


def test_a_printed_list_is_read() -> None:
    log = "\n".join(
        f"  {name} {'.' * 20} {value}"
        for name, value in {
            "num_layers": 4,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "seq_length": 512,
            "padded_vocab_size": 51200,
            "recompute_granularity": "selective",
            "recompute_modules": "['core_attn', 'mlp']",
        }.items()
    )
    printed = f"------------------------ arguments ------------------------\n{log}\n"
    printed += "-------------------- end of arguments ---------------------\n"
    assert import_megatron(printed)[0].recompute.modules == ("core_attention", "mlp")


def test_norms_and_activations_are_recomputed_in_fp8() -> None:
    fp8 = f"{EXPERTS} --fp8-format hybrid --bf16 --fp8-recipe blockwise --recompute-modules"
    scenario, _ = import_megatron(f"{BASE} {fp8} layernorm moe_act")
    assert scenario.recompute.modules == ("layernorm", "moe_act")


@pytest.mark.parametrize("name", ["--cuda-graph-scope", "--cuda-graph-modules"])
def test_cuda_graphs_capture_parts_of_recomputed_layers(name: str) -> None:
    graphs = f"--cuda-graph-impl transformer_engine {name} attn moe_router moe"
    scenario, text = import_megatron(f"{BASE} {EXPERTS} --recompute-modules moe_act {graphs}")
    assert not scenario.facts.cuda_graphs
    assert scenario.facts.cuda_graph_modules == ("attn", "moe_router")
    assert "CUDA graphs of moe are not modelled" in text


def test_megatron_lms_graph_of_an_iteration_with_recompute_is_noted() -> None:
    graphs = "--cuda-graph-impl local --cuda-graph-scope full_iteration"
    scenario, text = import_megatron(f"{BASE} {EXPERTS} --recompute-modules moe_act {graphs}")
    assert not scenario.facts.cuda_graphs
    assert "--cuda-graph-scope full_iteration: CUDA graphs with recompute" in text


@pytest.mark.parametrize(
    ("arguments", "excerpt"),
    [
        ("--cuda-graph-impl local", "E338"),
        ("--recompute-modules core_attn pre_mlp", "has pre_mlp, which is not modelled"),
        ("--recompute-modules core_attn mla_up_proj", "E347"),
        (
            f"{EXPERTS} --moe-layer-recompute --recompute-granularity full",
            "cannot be combined with full recompute",
        ),
    ],
)
def test_illegal_combinations_are_refused(arguments: str, excerpt: str) -> None:
    with pytest.raises(InputError, match=excerpt):
        import_megatron(BASE + arguments)
