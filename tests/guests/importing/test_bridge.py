"""`simtrain import`: printed configs of Megatron-Bridge."""

from pathlib import Path
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.resolved import settings_of
from tests.helpers.imported import bridge_draft, import_megatron, written

PRINTED = Path(__file__).with_name("bridge_config.yaml").read_text("utf-8")
LAYOUT = PRINTED[
    PRINTED.index("  pipeline_model_parallel_layout:") : PRINTED.index(
        "  pipeline_model_parallel_size"
    )
]
EVEN = PRINTED.replace(LAYOUT, "")
ARGUMENTS = """\
--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
--group-query-attention --num-query-groups 8 --kv-channels 128 --swiglu --normalization RMSNorm
--position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights
--hidden-dropout 0 --attention-dropout 0 --seq-length 8192 --max-position-embeddings 8192
--vocab-size 128256 --tokenizer-type Llama3Tokenizer --bf16 --use-distributed-optimizer
--overlap-grad-reduce --overlap-param-gather --tensor-model-parallel-size 2 --sequence-parallel
--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2
--no-overlap-p2p-communication --no-align-param-gather --cross-entropy-loss-fusion
--use-precision-aware-optimizer --exp-avg-dtype bf16 --micro-batch-size 1 --global-batch-size 128
"""


def of_bridge(text: str, name: str = "config.yaml", **options: Any) -> Scenario:
    return bridge_draft(written(name, text), gpus=64, **options).finished()[0]


SOFTWARE = {"software.stack": "megatron_bridge", "software.cuda_graphs": False}


def test_a_printed_config_is_the_scenario_of_the_same_arguments() -> None:
    expected, _ = import_megatron(ARGUMENTS, gpus=64)
    assert settings_of(of_bridge(EVEN)) == settings_of(expected) | SOFTWARE


def test_a_config_of_overlaps_turns_on_what_the_layout_can_have() -> None:
    overlap = "comm_overlap:\n  _target_: x.CommOverlapConfig\n  tp_comm_overlap: true\n"
    scenario = of_bridge(EVEN.replace("comm_overlap: null\n", overlap))
    arguments = ARGUMENTS.replace("--no-overlap-p2p-communication --no-align-param-gather", "")
    expected, _ = import_megatron(f"{arguments} --tp-comm-overlap", gpus=64)
    assert settings_of(scenario) == settings_of(expected) | SOFTWARE
    assert scenario.overlaps_pipeline and scenario.overlap.userbuffers


def test_what_a_config_says_wins_over_the_defaults_of_its_stack() -> None:
    one = of_bridge(EVEN)
    assert (one.overlaps_parameter_gather, one.gradient_type) == (True, "fp32")
    alone = of_bridge(EVEN.replace("overlap_param_gather: true", "overlap_param_gather: false"))
    assert (alone.overlaps_data_parallel, alone.overlaps_parameter_gather) == (True, False)
    none = of_bridge(EVEN.replace("overlap_grad_reduce: true", "overlap_grad_reduce: false"))
    assert not none.overlaps_data_parallel
    unfused = EVEN.replace("model:\n", "model:\n  cross_entropy_loss_fusion: false\n", 1)
    assert not of_bridge(unfused).facts.kernels.fused_cross_entropy
    assert one.facts.kernels.cross_entropy_fusion == "native"


def test_a_graph_of_the_whole_iteration_captures_recompute() -> None:
    graphs = "  cuda_graph_impl: local\n  cuda_graph_scope:\n  - SCOPE\n"
    recompute = "  recompute_granularity: selective\n  recompute_modules:\n  - mlp\n"
    text = EVEN.replace("  recompute_granularity: null\n", graphs + recompute)
    whole, part = (of_bridge(text.replace("SCOPE", name)) for name in ("full_iteration", "mlp"))
    assert (whole.recompute.modules, whole.facts.cuda_graphs) == (("mlp",), True)
    assert (part.recompute.modules, part.facts.cuda_graphs) == (("mlp",), False)
    assert part.facts.cuda_graph_modules == ("mlp",)


def test_a_log_with_a_printed_config_is_read() -> None:
    log = f"[rank0] starting\n------- Task Configuration -------\n{EVEN}{'-' * 40}\n> loading: [\n"
    assert of_bridge(log, "log.txt") == of_bridge(EVEN)
    with pytest.raises(InputError, match=r"log\.txt:\d+:\d+: E872 model\.num_layers x"):
        of_bridge(log.replace("num_layers: 32", "num_layers: x"), "log.txt")


def test_a_layout_is_a_list_of_the_parts_of_each_stage() -> None:
    text = PRINTED.replace("num_layers: 32", "num_layers: 2")
    text = text.replace("pipeline_model_parallel_size: 4", "pipeline_model_parallel_size: 2")
    text = text.replace(
        "virtual_pipeline_model_parallel_size: 2", "virtual_pipeline_model_parallel_size: null"
    )
    assert of_bridge(text).parallelism.layout == "Et|tL"


PRECISION = EVEN[EVEN.index("mixed_precision:\n") : EVEN.index("model:\n", EVEN.index("mixed_"))]
EXPERTS = "num_moe_experts: 8\n  moe_router_topk: 2\n  moe_ffn_hidden_size: 1024"


def named(precision: str, config: str = EVEN) -> Scenario:
    """Return the scenario of a config with a named precision."""
    return of_bridge(config.replace(PRECISION, f"mixed_precision: {precision}\n"))


def test_a_named_precision_keeps_its_first_and_last_layers_in_bf16() -> None:
    in_fp8 = named("bf16_with_fp8_current_scaling_mixed").precision
    assert (in_fp8.compute, in_fp8.fp8_recipe) == ("fp8", "tensorwise")
    assert (in_fp8.first_layers_bf16, in_fp8.last_layers_bf16) == (1, 1)
    in_fp4 = named("nemotron_3_super_bf16_with_nvfp4_mixed").precision
    assert (in_fp4.compute, in_fp4.last_layers_bf16) == ("fp4", 14)


def test_releases_of_the_stack_turn_on_nothing_that_a_config_leaves_off() -> None:
    """The newest release's recipes for a GB300 in mxfp8 have graphs and merged passes."""
    plain = EVEN.replace("num_moe_experts: null", EXPERTS)
    scenario = named("bf16_with_mxfp8_mixed", plain).replace({"cluster": "gb300"})
    assert scenario.fp8_recipe == "mxfp8"
    assert scenario.expert_dispatch == "all_to_all"
    assert not (scenario.facts.cuda_graphs or scenario.merges_passes)
    assert not scenario.facts.kernels.fused_grouped_mlp
    fused = plain.replace("model:\n", "model:\n  use_transformer_engine_op_fuser: true\n", 1)
    kernels = named("bf16_with_mxfp8_mixed", fused).facts.kernels
    assert (kernels.fused_grouped_mlp, kernels.paged_stash) == (True, False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("models.gpt_provider.GPT", "models.qwen3_next.Qwen3Next", "E877 .* linear attention"),
        ("functional.silu", "functional.tanh", r"E872 model\.activation_func is tanh"),
        ("num_layers: 32", "new_parallel_size: 2", r"E871 model\.new_parallel_size is not a known"),
    ],
)
def test_what_is_not_simulated_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        of_bridge(EVEN.replace(old, new))


def test_an_unknown_field_that_is_on_is_an_error() -> None:
    text = EVEN.replace("new_field_that_is_off: false", "new_field_that_is_on: true")
    with pytest.raises(InputError, match=r"E871 model\.new_field_that_is_on is not a known field"):
        of_bridge(text)
    assert of_bridge(text, ignore_unknown=True) == of_bridge(EVEN)


def test_accounted_ends_of_interleaved_stages_are_a_layout() -> None:
    """126 layers with embedding and loss are 128: 8 per chunk of 16."""
    text = EVEN.replace("num_layers: 32", "num_layers: 126").replace("size: 4\n", "size: 8\n")
    text = text.replace("model:\n", "model:\n  account_for_embedding_in_pipeline_split: true\n", 1)
    text = text.replace("model:\n", "model:\n  account_for_loss_in_pipeline_split: true\n", 1)
    scenario, _ = bridge_draft(written("config.yaml", text), gpus=64).finished()
    assert scenario.parallelism.layout == "Et*7|(t*8|)*14t*7L"


def test_packed_documents_are_noted_unless_their_lengths_are_given() -> None:
    data = "dataset:\n  offline_packing_specs:\n    packed_sequence_size: 8192\n"
    file = written("config.yaml", EVEN + data)
    (note,) = (x for x in bridge_draft(file, gpus=64).notes if "packed_sequence_size" in x)
    assert "batch.packed_lengths=[512]" in note
    draft = bridge_draft(file, ["batch.packed_lengths=[512]"], gpus=64)
    assert not [x for x in draft.notes if "packed_sequence_size" in x]
    assert draft.finished()[0].documents == ((512, 16),)


def test_adapters_are_noted() -> None:
    peft = "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 16\n"
    draft = bridge_draft(written("config.yaml", EVEN + peft), gpus=64)
    assert draft.finished()[0].model.lora is None
    assert any("only adapters are trained" in note for note in draft.notes)
