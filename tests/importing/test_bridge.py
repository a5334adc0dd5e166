"""`simtrain import`: printed configs and recipes of Megatron-Bridge."""

from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.resolved import settings_of
from tests.helpers.command_line import call, refused
from tests.helpers.imported import bridge_draft, import_megatron, written

PRINTED = """\
_target_: megatron.bridge.training.config.ConfigContainer
checkpoint:
  _target_: megatron.bridge.training.config.CheckpointConfig
  save: null
  async_save: false
comm_overlap: null
ddp:
  _target_: megatron.core.distributed.DistributedDataParallelConfig
  align_param_gather: false
  data_parallel_sharding_strategy: no_shard
  grad_reduce_in_fp32: false
  overlap_grad_reduce: true
  overlap_param_gather: true
  use_distributed_optimizer: true
  use_megatron_fsdp: false
mixed_precision:
  _target_: megatron.bridge.training.mixed_precision.MixedPrecisionConfig
  bf16: true
  grad_reduce_in_fp32: true
  params_dtype:
    _call_: false
    _target_: torch.bfloat16
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  activation_func:
    _call_: false
    _target_: torch.nn.functional.silu
  add_bias_linear: false
  attention_backend:
    _args_:
    - 5
    _call_: true
    _target_: megatron.core.transformer.enums.AttnBackend
  attention_dropout: 0.0
  bias_activation_fusion: true
  context_parallel_size: 1
  ffn_hidden_size: 14336
  gated_linear_unit: true
  hidden_dropout: 0.0
  hidden_size: 4096
  kv_channels: 128
  make_vocab_size_divisible_by: 128
  new_field_that_is_off: false
  normalization: RMSNorm
  num_attention_heads: 32
  num_layers: 32
  num_moe_experts: null
  num_query_groups: 8
  overlap_p2p_comm: false
  pipeline_model_parallel_layout:
  - - embedding
    - decoder
  - - decoder
    - loss
  pipeline_model_parallel_size: 4
  position_embedding_type: rope
  recompute_granularity: null
  seq_length: 8192
  sequence_parallel: true
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 2
  vocab_size: 128256
optimizer:
  _target_: megatron.core.optimizer.OptimizerConfig
  exp_avg_dtype:
    _call_: false
    _target_: torch.bfloat16
  use_precision_aware_optimizer: true
train:
  _target_: megatron.bridge.training.config.TrainingConfig
  global_batch_size: 128
  micro_batch_size: 1
"""
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


RECIPE = """\
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.recipes.utils import apply_flex_dispatcher_backend, SIZE
from megatron.bridge.training.comm_overlap import CommOverlapConfig

MODEL = "Qwen/Qwen3-30B-A3B"


def set_layout(model, layout=None):
    if layout is not None:
        model.pipeline_model_parallel_layout = layout
        return
    parts = {(2, 1): [["embedding"] + ["decoder"] * 20, ["decoder"] * 28 + ["loss"]]}
    pipeline = model.pipeline_model_parallel_size or 1
    chunks = model.virtual_pipeline_model_parallel_size or 1
    if (pipeline, chunks) in parts:
        model.pipeline_model_parallel_layout = parts[(pipeline, chunks)]


def qwen3_30b_a3b_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    cfg.tokenizer.vocab_size = SIZE
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.expert_model_parallel_size = 8
    cfg.model.seq_length = 4096
    set_layout(cfg.model)
    apply_flex_dispatcher_backend(cfg.model, "deepep")
    cfg.train.global_batch_size = 512
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    return cfg
"""


def test_a_recipe_is_read_as_text() -> None:
    file = written("recipe.py", RECIPE)
    scenario, text = bridge_draft(file, gpus=64).finished()
    assert scenario.model.experts and scenario.model.experts.num == 128
    assert scenario.model.vocab_size == 151936
    split = scenario.parallelism
    assert (split.tensor, split.pipeline, split.expert) == (2, 2, 8)
    assert split.layout == "Et*20|t*28L"
    # _pretrain_common has microbatches of 2.
    assert (scenario.batch.micro, scenario.batch.global_) == (2, 512)
    assert (scenario.precision.compute, scenario.precision.fp8_recipe) == ("fp8", "tensorwise")
    assert scenario.overlap.data_parallel and scenario.overlap.parameter_gather
    assert "# - model.apply_flex_dispatcher_backend()" in text
    assert (scenario.precision.first_layers_bf16, scenario.precision.last_layers_bf16) == (1, 1)


def test_releases_of_the_stack_turn_on_nothing_that_a_config_leaves_off() -> None:
    """The newest release's recipes for a GB300 in mxfp8 have graphs and merged passes."""
    plain = RECIPE.replace("fp8_current_scaling", "mxfp8")
    scenario = bridge_draft(written("recipe.py", plain), gpus=64).finished()[0]
    scenario = scenario.replace({"cluster": "gb300"})
    assert scenario.fp8_recipe == "mxfp8"
    assert scenario.expert_dispatch == "all_to_all"  # the function that sets it is not read
    assert not (scenario.facts.cuda_graphs or scenario.merges_passes)
    assert not scenario.facts.kernels.fused_grouped_mlp
    line = "    cfg.model.use_transformer_engine_op_fuser = True\n"
    fused = plain.replace("    cfg.train.global", f"{line}    cfg.train.global")
    kernels = bridge_draft(written("recipe.py", fused), gpus=64).finished()[0].facts.kernels
    assert (kernels.fused_grouped_mlp, kernels.paged_stash) == (True, False)


def test_a_named_precision_in_fp4_keeps_its_last_layers_in_bf16() -> None:
    named = RECIPE.replace("bf16_with_fp8_current_scaling", "nemotron_3_super_bf16_with_nvfp4")
    precision = bridge_draft(written("recipe.py", named), gpus=64).finished()[0].precision
    assert precision.compute == "fp4"
    assert (precision.first_layers_bf16, precision.last_layers_bf16) == (1, 14)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Next-80B-A3B", "E877 .* linear attention"),
        ("Qwen/Qwen3-30B-A3B", "new/Model-3B", r"E877 .* sizes of the model new/Model-3B"),
        ('MODEL = "Qwen/Qwen3-30B-A3B"', "MODEL = choose()", "E874 the name of the model"),
        ("pipeline_dtype", "new_parallel_size", r"E871 model\.new_parallel_size is not a known"),
        ("= 8\n", "= choose()\n", r"E874 model\.expert_model_parallel_size is"),
        (
            "return cfg",
            "cfg.peft = A() if more() else C()\n    return cfg",
            r"E874 peft depends on more\(\)",
        ),
    ],
)
def test_what_the_file_does_not_say_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bridge_draft(written("recipe.py", RECIPE.replace(old, new)), gpus=64).finished()


def test_an_unknown_field_that_is_on_is_an_error() -> None:
    text = EVEN.replace("new_field_that_is_off: false", "new_field_that_is_on: true")
    with pytest.raises(InputError, match=r"E871 model\.new_field_that_is_on is not a known field"):
        of_bridge(text)
    assert of_bridge(text, ignore_unknown=True) == of_bridge(EVEN)


def test_the_command_writes_a_scenario_that_loads() -> None:
    written("config.yaml", EVEN)
    done = call("import", "config.yaml", "--gpus", "64", "-o", "o.yaml")
    assert done.exit_code == 0
    assert load_scenario("o.yaml").num_gpus == 64
    assert call("run", "config.yaml", "--set", "parallelism.data=8").exit_code == 0
    assert "E116 this is a config of Megatron-Bridge" in refused("import", "config.yaml")
    written("recipe.py", RECIPE)
    assert "simtrain import recipe.py" in refused("import", "recipe.py")


def test_accounted_ends_of_interleaved_stages_are_a_layout() -> None:
    """126 layers with embedding and loss are 128: 8 per chunk of 16."""
    text = EVEN.replace("num_layers: 32", "num_layers: 126").replace("size: 4\n", "size: 8\n")
    text = text.replace("model:\n", "model:\n  account_for_embedding_in_pipeline_split: true\n", 1)
    text = text.replace("model:\n", "model:\n  account_for_loss_in_pipeline_split: true\n", 1)
    scenario, _ = bridge_draft(written("config.yaml", text), gpus=64).finished()
    assert scenario.parallelism.layout == "Et*7|(t*8|)*14t*7L"
